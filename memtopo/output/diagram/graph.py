"""A layout as a graph, as data: what each process has, what is mapped where, and the handles that go between them.

Its words are as the picture has them: whoever writes the graph down escapes them. Ids are made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from memtopo.common.units import rounded
from memtopo.output.diagram.model import Diagram, Export, HandleFlow, MappingSpan, RangeDiagram, Resource
from memtopo.output.diagram.notation import granted, multiple, of_all, offset, processes, subjects

Shape = Literal["memory", "object", "range", "export", "import", "outside", "more"]


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its lines of text, the first of them its name, and the devices of its memory.

    `kind` is the word for it (`chunk`, `event`); its shape shows the part that it plays in a graph.
    """

    id: str
    kind: str
    shape: Shape
    lines: tuple[str, ...]
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """From one node to another: a mapping, or the way of `handles`."""

    source: str
    target: str
    lines: tuple[str, ...] = ()
    handles: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of one process, or of several alike, which its title tells."""

    id: str
    title: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Clusters, the nodes that are in none, and the edges between any two; `devices` are all, in order."""

    clusters: tuple[Cluster, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    devices: tuple[str, ...]


EACH = 12
MAPPINGS = 3
"""Mappings of one chunk into one range that are told one by one."""

_Name = tuple[str, str, str]
"""What a node is of: a process, the part that it plays, and its name there."""


def graph(picture: Diagram, each: int = EACH) -> Graph:
    """The graph of a picture, with at most `each` processes, and as many things of one kind in each of them."""
    return _Sketch(each).draw(picture)


class _Sketch:
    def __init__(self, each: int) -> None:
        self._each = each
        self._ids: dict[_Name, str] = {}
        self._fresh = (f"n{turn}" for turn in count())
        self._edges: dict[tuple[str, str], list[str]] = {}
        self._devices: dict[str, None] = {}

    def draw(self, picture: Diagram) -> Graph:
        taken: dict[str, list[HandleFlow]] = {}
        for flow in picture.flows:
            taken.setdefault(flow.target, []).append(flow)
        self._devices |= dict.fromkeys(memory.device for memory in picture.memory)
        clusters: list[Cluster] = []
        for turn, each in enumerate(picture.processes[: self._each]):
            nodes = tuple(self._nodes(each.first, each.picture, taken.get(each.first, ())))
            clusters.append(Cluster(f"p{turn}", processes(each), nodes))
        alone = [] if clusters else [*self._nodes("", picture, taken.get("", ()))]
        alone += self._outside(picture.flows)
        if more := sum(each.count for each in picture.processes[self._each :]):
            alone.append(Node("more", "more", "more", (f"… and {more:,} more processes",)))
        for label, shown in [("", picture), *((each.first, each.picture) for each in picture.processes)]:
            self._join(label, shown)
        mappings = (Edge(*ends, tuple(_few(told))) for ends, told in self._edges.items())
        return Graph(tuple(clusters), tuple(alone), (*mappings, *self._handles(picture.flows)), tuple(self._devices))

    def _nodes(self, process: str, shown: Diagram, taken: Iterable[HandleFlow]) -> Iterator[Node]:
        yield from self._some(process, "memory", _created(shown))
        objects = (each for each in shown.things if not each.mark and not each.origin)
        yield from self._some(process, "object", (_object(each) for each in objects))
        yield from self._some(process, "import", _imports(taken, shown))
        yield from self._some(process, "range", (_range(each) for each in shown.ranges))
        yield from self._some(process, "export", (_export(each) for each in shown.exports))

    def _some(self, process: str, part: str, found: Iterable[tuple[str, Node]]) -> Iterator[Node]:
        """The first ones under ids of their own, and how many more there are."""
        more = 0
        for turn, (name, node) in enumerate(found):
            if turn < self._each:
                yield self._named((process, part, name), node)
            else:
                more += 1
        if more:
            yield self._named((process, part, ""), Node("", "more", "more", (f"… {more:,} more",)))

    def _outside(self, flows: Sequence[HandleFlow]) -> Iterator[Node]:
        holders = dict.fromkeys(flow.source for flow in flows if flow.outside)
        yield from self._some(
            "", "outside", ((each, Node("", "outside", "outside", (each, "outside"))) for each in holders)
        )

    def _named(self, name: _Name, node: Node) -> Node:
        self._ids[name] = next(self._fresh)
        self._devices |= dict.fromkeys(node.devices)
        return Node(self._ids[name], node.kind, node.shape, node.lines, node.devices)

    def _join(self, process: str, shown: Diagram) -> None:
        """What is mapped and exported."""
        for each in shown.ranges:
            alike = len({piece.access for piece in each.pieces if piece.chunk}) < 2  # noqa: PLR2004
            for piece in each.pieces:
                if piece.chunk:
                    self._edge(
                        _source(process, piece), (process, "range", each.first), _mapping(piece, each, alike=alike)
                    )
        for export in shown.exports:
            source = (process, "memory", export.mark) if export.mark else (process, "object", export.first)
            self._edge(source, (process, "export", export.name), "")

    def _edge(self, source: _Name, target: _Name, told: str) -> None:
        if source in self._ids and target in self._ids:
            self._edges.setdefault((self._ids[source], self._ids[target]), []).append(told)

    def _handles(self, flows: Iterable[HandleFlow]) -> Iterator[Edge]:
        for flow in flows:
            source = ("", "outside", flow.source) if flow.outside else (flow.source, "export", flow.export)
            target = (flow.target, "import", flow.name)
            if source in self._ids and target in self._ids:
                yield Edge(self._ids[source], self._ids[target], tuple(_way(flow)), handles=True)


def _created(shown: Diagram) -> Iterator[tuple[str, Node]]:
    """What a process has memory of, by mark, wherever it is."""
    resources = {each.mark: each for each in shown.things if not each.origin}
    found: dict[str, dict[int, int]] = {}
    places: dict[str, list[str]] = {}
    for memory in shown.memory:
        for share in memory.shares:
            sizes = found.setdefault(share.chunk, {})
            sizes[share.bytes_each] = sizes.get(share.bytes_each, 0) + share.count
            places.setdefault(share.chunk, []).append(memory.device)
    for mark, sizes in found.items():
        size = ", ".join(multiple(times, each) for each, times in sizes.items())
        devices = tuple(dict.fromkeys(places[mark]))
        resource = resources.get(mark)
        kind = [resource.kind] if resource and resource.noun else []
        lines = mark.rpartition(": ")[2], *kind, size, ", ".join(devices)
        yield mark, Node("", resource.kind if resource else "chunk", "memory", lines, devices)


def _object(shown: Resource) -> tuple[str, Node]:
    lines = shown.name, shown.kind, ", ".join(shown.locations)
    return shown.name, Node("", shown.kind, "object", lines, shown.locations)


def _imports(taken: Iterable[HandleFlow], shown: Diagram) -> Iterator[tuple[str, Node]]:
    """What is imported, each name once, however many processes it comes from."""
    places = {piece.first.partition(".")[0]: piece.locations for each in shown.ranges for piece in each.pieces}
    things = {thing.name: thing for thing in shown.things if thing.origin}
    counts: dict[str, int] = {}
    flows: dict[str, HandleFlow] = {}
    for flow in taken:
        flows[flow.name] = flow
        counts[flow.name] = counts.get(flow.name, 0) + flow.count * flow.processes
    for name, flow in flows.items():
        size = multiple(counts[name], flow.bytes_each) if flow.bytes_each else flow.kind
        thing = things.get(name)
        devices = thing.locations if thing else places.get(name, ())
        more = _inside(thing) if thing else ()
        yield name, Node("", "import", "import", tuple(filter(None, (name, size, *more, ", ".join(devices)))), devices)


def _inside(shown: Resource) -> Iterator[str]:
    """What else is to be known of what is imported, and how many parts it has."""
    yield ", ".join(shown.notes)
    if parts := len(shown.parts):
        yield f"{parts:,} part{'s' * (parts > 1)}"


def _range(shown: RangeDiagram) -> tuple[str, Node]:
    found = {piece.access for piece in shown.pieces if piece.chunk}
    holds = granted(found.pop()) if len(found) == 1 else ""
    mapped = f"{rounded(shown.mapped)} mapped" if shown.mapped < shown.size else ""
    lines = subjects(shown.first, shown.last), multiple(shown.count, shown.size), mapped, holds
    return shown.first, Node("", "range", "range", tuple(filter(None, lines)))


def _export(shown: Export) -> tuple[str, Node]:
    count = f"{shown.count:,} handles" if shown.count > 1 else "1 handle"
    return shown.name, Node("", "export", "export", (shown.name, f"{count} by {shown.via}"))


def _source(process: str, piece: MappingSpan) -> _Name:
    if piece.origin:
        return process, "import", piece.first.partition(".")[0]
    return process, "memory", piece.chunk


def _mapping(piece: MappingSpan, range_: RangeDiagram, *, alike: bool) -> str:
    access = "" if alike else f", {granted(piece.access)}"
    return f"{of_all(piece, range_.count)} at {offset(piece.offset)}{access}"


def _way(flow: HandleFlow) -> Iterator[str]:
    if flow.outside:
        yield flow.export
    each = f"{flow.count:,} " if flow.count > 1 else ""
    of = f" from each of {flow.processes:,}" if flow.processes > 1 else ""
    yield f"{each}by {flow.via}{of}"


def _few(told: Sequence[str]) -> Iterator[str]:
    yield from filter(None, told[:MAPPINGS])
    if (more := len(told) - MAPPINGS) > 0:
        yield f"… {more:,} more"
