"""Layouts as graphs of bounded size: the nodes of each process, mappings, and flows of handles, as DOT and Mermaid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Literal

from memtopo.common.text import output_line, printable
from memtopo.common.units import rounded
from memtopo.geometry.diagram import Diagram, Export, HandleFlow, MappingSpan, RangeDiagram, Resource
from memtopo.output.blocks import Drawing
from memtopo.output.diagram.notation import (
    PLAIN,
    TINTS,
    chunk_names,
    granted,
    multiple,
    name_range,
    offset,
    processes,
    remark,
)

MOST_NODES = 12
MOST_MAPPINGS = 3
"""Mappings of one chunk into one range that are listed one by one."""

Shape = Literal["memory", "object", "range", "export", "import", "outside", "more"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node with its lines of text, the first of them its name, and the devices of its memory.

    `kind` is the word for it (`chunk`, `event`), `shape` its part in the graph.
    """

    kind: str
    shape: Shape
    lines: tuple[str, ...]
    devices: tuple[str, ...] = ()
    id: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A mapping, an export, a binding, or a flow of `handles`, between two nodes by their ids."""

    source: str
    target: str
    lines: tuple[str, ...] = ()
    handles: bool = False


@dataclass(frozen=True, slots=True)
class GraphCluster:
    """The nodes of one process, or of several equal ones."""

    id: str
    title: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Clusters, nodes outside of them, and edges; `devices` are all devices in the order of their colours."""

    clusters: tuple[GraphCluster, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    devices: tuple[str, ...]


_Key = tuple[str, str, str]
"""Key of a node: its process, its part there (`memory`, `import`), and its name."""
_Keyed = tuple[_Key, Node]


def graph(diagram: Diagram, most: int = MOST_NODES) -> Graph:
    """The graph of a diagram, with at most `most` processes, and as many nodes of one part in each process."""
    shown = diagram.processes[:most]
    clusters = [_process_nodes(each.first, each.picture, diagram.flows, most) for each in shown]
    single = () if clusters else _process_nodes("", diagram, diagram.flows, most)
    *groups, free = _numbered([*clusters, chain(single, _outside_nodes(diagram.flows, most))])
    nodes = [node for _, node in free]
    if more := sum(each.count for each in diagram.processes[most:]):
        nodes.append(Node("more", "more", (f"… and {more:,} more processes",), id="more"))
    if diagram.choices:
        nodes.append(Node("choices", "more", diagram.choices, id="choices"))
    keyed = [*chain(*groups, free)]
    ids = {key: node.id for key, node in keyed}
    devices = chain((memory.device for memory in diagram.memory), *(node.devices for _, node in keyed))
    return Graph(
        clusters=tuple(
            GraphCluster(f"p{index}", processes(each), tuple(node for _, node in group))
            for index, (each, group) in enumerate(zip(shown, groups, strict=True))
        ),
        nodes=tuple(nodes),
        edges=(*_process_edges(diagram, ids), *_flow_edges(diagram.flows, ids)),
        devices=tuple(dict.fromkeys(devices)),
    )


def _numbered(groups: Iterable[Iterable[_Keyed]]) -> Iterator[list[_Keyed]]:
    numbers = count()
    for group in groups:
        yield [(key, replace(node, id=f"n{next(numbers)}")) for key, node in group]


def _process_nodes(process: str, diagram: Diagram, flows: Sequence[HandleFlow], most: int) -> Iterator[_Keyed]:
    taken = [flow for flow in flows if flow.target == process]
    objects = (each for each in diagram.things if not each.mark and not each.origin and not each.bound)
    yield from _first(process, "memory", _memory_nodes(diagram), most)
    yield from _first(process, "object", map(_object_node, objects), most)
    yield from _first(process, "import", _import_nodes(taken, diagram), most)
    yield from _first(process, "range", map(_range_node, diagram.ranges), most)
    yield from _first(process, "export", map(_export_node, diagram.exports), most)


def _outside_nodes(flows: Sequence[HandleFlow], most: int) -> Iterator[_Keyed]:
    holders = dict.fromkeys(flow.source for flow in flows if flow.outside)
    nodes = ((holder, Node("outside", "outside", (holder, "outside"))) for holder in holders)
    yield from _first("", "outside", nodes, most)


def _first(process: str, part: str, nodes: Iterable[tuple[str, Node]], most: int) -> Iterator[_Keyed]:
    """The first nodes by name, and the number of those left out."""
    more = 0
    for index, (name, node) in enumerate(nodes):
        if index < most:
            yield (process, part, name), node
        else:
            more += 1
    if more:
        yield (process, part, ""), Node("more", "more", (f"… {more:,} more",))


def _memory_nodes(diagram: Diagram) -> Iterator[tuple[str, Node]]:
    """Memory that a process creates, by mark, on all devices together."""
    resources = {each.mark: each for each in diagram.things if not each.origin}
    counts: dict[str, dict[int, int]] = {}
    devices: dict[str, dict[str, None]] = {}
    for memory in diagram.memory:
        for share in memory.shares:
            sizes = counts.setdefault(share.chunk, {})
            sizes[share.bytes_each] = sizes.get(share.bytes_each, 0) + share.count
            devices.setdefault(share.chunk, {})[memory.device] = None
    for mark, sizes in counts.items():
        size = ", ".join(multiple(number, each) for each, number in sizes.items())
        resource = resources.get(mark)
        kind = [resource.kind] if resource and resource.noun else []
        lines = mark.rpartition(": ")[2], *kind, size, ", ".join(devices[mark])
        yield mark, Node(resource.kind if resource else "chunk", "memory", lines, tuple(devices[mark]))


def _object_node(resource: Resource) -> tuple[str, Node]:
    lines = resource.name, resource.kind, ", ".join(resource.locations)
    return resource.name, Node(resource.kind, "object", lines, resource.locations)


def _import_nodes(flows: Iterable[HandleFlow], diagram: Diagram) -> Iterator[tuple[str, Node]]:
    """Imports, each once, from however many processes."""
    locations = {_entry(span): span.locations for range_ in diagram.ranges for span in range_.pieces}
    resources = {resource.name: resource for resource in diagram.things if resource.origin}
    counts: dict[str, int] = {}
    last: dict[str, HandleFlow] = {}
    for flow in flows:
        last[flow.name] = flow
        counts[flow.name] = counts.get(flow.name, 0) + flow.count * flow.processes
    for name, flow in last.items():
        size = multiple(counts[name], flow.bytes_each) if flow.bytes_each else flow.kind
        resource = resources.get(name)
        devices = resource.locations if resource else locations.get(name, ())
        more = _properties(resource) if resource else ()
        yield name, Node("import", "import", tuple(filter(None, (name, size, *more, ", ".join(devices)))), devices)


def _properties(resource: Resource) -> Iterator[str]:
    yield ", ".join(resource.notes)
    if parts := len(resource.parts):
        yield f"{parts:,} part{'s' * (parts > 1)}"


def _range_node(range_: RangeDiagram) -> tuple[str, Node]:
    access = {span.access for span in range_.pieces if span.chunk}
    whole = granted(access.pop()) if len(access) == 1 else ""
    mapped = f"{rounded(range_.mapped)} mapped" if range_.mapped < range_.size else ""
    lines = name_range(range_.first, range_.last), multiple(range_.count, range_.size), mapped, whole, remark(range_)
    return range_.first, Node("range", "range", tuple(filter(None, lines)))


def _export_node(export: Export) -> tuple[str, Node]:
    handles = f"{export.count:,} handles" if export.count > 1 else "1 handle"
    return export.name, Node("export", "export", (export.name, f"{handles} by {export.via}"))


def _process_edges(diagram: Diagram, ids: Mapping[_Key, str]) -> Iterator[Edge]:
    """Mappings, exports and bindings of all processes, those between two nodes as one edge."""
    texts: dict[tuple[str, str], list[str]] = {}
    for process, shown in [("", diagram), *((each.first, each.picture) for each in diagram.processes)]:
        for source, target, text in chain(
            _mappings(process, shown, ids), _bindings(process, shown), _exports(process, shown)
        ):
            if source in ids and target in ids:
                texts.setdefault((ids[source], ids[target]), []).append(text)
    for (start, end), lines in texts.items():
        yield Edge(start, end, tuple(_first_lines(lines)))


def _mappings(process: str, diagram: Diagram, ids: Mapping[_Key, str]) -> Iterator[tuple[_Key, _Key, str]]:
    for range_ in diagram.ranges:
        spans = [span for span in range_.pieces if span.chunk]
        same_access = len({span.access for span in spans}) < 2  # noqa: PLR2004
        for span in spans:
            access = "" if same_access else f", {granted(span.access)}"
            text = f"{chunk_names(span, range_.count)} at {offset(span.offset)}{access}"
            memory, other = _sources(process, span)
            yield memory if memory in ids else other, (process, "range", range_.first), text


def _sources(process: str, span: MappingSpan) -> tuple[_Key, _Key]:
    """Keys of what is mapped: memory or an import, and an object without memory."""
    name = _entry(span)
    return (process, "import", name) if span.origin else (process, "memory", span.chunk), (process, "object", name)


def _bindings(process: str, diagram: Diagram) -> Iterator[tuple[_Key, _Key, str]]:
    imported = {each.name for each in diagram.things if each.origin}
    for each in diagram.things:
        target = (process, "import" if each.target in imported else "object", each.target)
        for mark in each.bound:
            yield (process, "memory", mark), target, "bound"


def _entry(span: MappingSpan) -> str:
    return span.first.partition(".")[0]


def _exports(process: str, diagram: Diagram) -> Iterator[tuple[_Key, _Key, str]]:
    for export in diagram.exports:
        source = (process, "memory", export.mark) if export.mark else (process, "object", export.first)
        yield source, (process, "export", export.name), ""


def _flow_edges(flows: Iterable[HandleFlow], ids: Mapping[_Key, str]) -> Iterator[Edge]:
    for flow in flows:
        source = ("", "outside", flow.source) if flow.outside else (flow.source, "export", flow.export)
        target = (flow.target, "import", flow.name)
        if source in ids and target in ids:
            yield Edge(ids[source], ids[target], tuple(_flow_lines(flow)), handles=True)


def _flow_lines(flow: HandleFlow) -> Iterator[str]:
    if flow.outside:
        yield flow.export
    each = f"{flow.count:,} " if flow.count > 1 else ""
    of = f" from each of {flow.processes:,}" if flow.processes > 1 else ""
    yield f"{each}by {flow.via}{of}"


def _first_lines(lines: Sequence[str]) -> Iterator[str]:
    yield from filter(None, lines[:MOST_MAPPINGS])
    if (more := len(lines) - MOST_MAPPINGS) > 0:
        yield f"… {more:,} more"


_SHAPES: Mapping[Shape, tuple[str, str, str]] = {
    "memory": ("box", "[", "]"), "object": ("ellipse", "([", "])"), "range": ("box3d", "[[", "]]"),
    "export": ("cds", ">", "]"), "import": ("box", "[/", "/]"), "outside": ("component", "{{", "}}"),
    "more": ("plaintext", "[", "]"),
}  # fmt: skip
"""Shape of a node in DOT, and the brackets around its text in Mermaid."""


@dataclass(frozen=True, slots=True)
class _Language:
    """Start and end of a cluster, a node with the tint of each of its devices, and an edge, as text."""

    start: Callable[[GraphCluster], Sequence[str]]
    end: str
    node: Callable[[Node, Sequence[int]], str]
    edge: Callable[[Edge], str]

    def lines(self, shown: Graph) -> Iterator[str]:
        """The clusters, nodes and edges of a graph."""
        tints = {device: index % len(TINTS) for index, device in enumerate(shown.devices)}
        for cluster in shown.clusters:
            first, *more = self.start(cluster)
            yield from (f"  {first}", *(f"    {each}" for each in more))
            yield from (f"    {self.node(node, [tints[device] for device in node.devices])}" for node in cluster.nodes)
            yield f"  {self.end}"
        yield from (f"  {self.node(node, [tints[device] for device in node.devices])}" for node in shown.nodes)
        yield from (f"  {self.edge(edge)}" for edge in shown.edges)


_HEAD = """\
  graph [rankdir=LR, fontname="Helvetica", labelloc=t, labeljust=l, nodesep=0.3, ranksep=0.8, compound=true];
  node [fontname="Helvetica", fontsize=11, margin="0.14,0.07"];
  edge [fontname="Helvetica", fontsize=9, color="#57606a", fontcolor="#24292f"];"""


def dot(drawing: Drawing) -> str:
    """A layout as a digraph of Graphviz."""
    lines = ("digraph memtopo {", _HEAD, f"  label={_quoted(drawing.title)};", *_DOT.lines(graph(drawing.diagram)), "}")
    return "".join(f"{line}\n" for line in lines)


def _dot_cluster(cluster: GraphCluster) -> Sequence[str]:
    style = f'label={_quoted(cluster.title)}; style=rounded; color="{PLAIN.line}"; fontsize=13;'
    return f"subgraph cluster_{cluster.id} {{", style


def _dot_node(node: Node, indices: Sequence[int]) -> str:
    tints, shape = [TINTS[index] for index in indices] or [PLAIN], _SHAPES[node.shape][0]
    striped = len(tints) > 1 and shape == "box"
    style = ("striped" if striped else "filled") + (",dashed" if node.shape == "import" else "")
    fill = ":".join(tint.fill for tint in tints) if striped else tints[0].fill
    colours = f'fillcolor="{fill}", color="{tints[0].line}"'
    return f'{node.id} [label={_quoted(*node.lines)}, shape={shape}, style="{style}", {colours}];'


def _dot_edge(edge: Edge) -> str:
    style = ', style=dashed, penwidth=1.6, color="#24292f"' if edge.handles else ""
    return f"{edge.source} -> {edge.target} [label={_quoted(*edge.lines)}{style}];"


def _quoted(*lines: str) -> str:
    """Lines as one quoted string, with escapes, entities and quotes in them escaped."""
    shown = (output_line(line) for line in lines)
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in shown)
    return '"' + "\\n".join(escaped) + '"'


_DOT = _Language(_dot_cluster, "}", _dot_node, _dot_edge)

MOST_CHARACTERS = 45_000
MOST_EDGES = 450
"""GitHub draws at most 50,000 characters and 500 edges."""

# All but characters that have no meaning in Markdown, HTML and Mermaid.
_SPECIAL = re.compile(r"[^A-Za-z0-9 ,.()×…/_+=-]")


def mermaid(drawing: Drawing) -> str:
    """A layout as a flowchart of Mermaid, which GitHub draws in Markdown; of a large one as much as GitHub draws."""
    for most in (MOST_NODES, MOST_NODES // 2, MOST_NODES // 4, 1):
        shown = graph(drawing.diagram, most)
        text = "".join(f"{line}\n" for line in _flowchart(shown, drawing.title))
        if len(text) <= MOST_CHARACTERS and len(shown.edges) <= MOST_EDGES:
            break
    return text


def _flowchart(shown: Graph, title: str) -> Iterator[str]:
    yield "flowchart LR"
    plain = re.sub(r"[^\w ,.()-]", " ", printable(title)).strip()
    yield f"  accTitle: {plain or 'layout'}"
    yield from _MERMAID.lines(shown)
    for index in range(min(len(shown.devices), len(TINTS))):
        yield f"  classDef d{index} fill:{TINTS[index].fill},stroke:{TINTS[index].line},color:#000"
    for cluster in shown.clusters:
        yield f"  style {cluster.id} fill:none,stroke:{PLAIN.line}"
    yield f"  classDef plain fill:{PLAIN.fill},stroke:{PLAIN.line},color:#000"


def _mermaid_node(node: Node, tints: Sequence[int]) -> str:
    _, before, after = _SHAPES[node.shape]
    return f"{node.id}{before}{_coded(*node.lines)}{after}:::{f'd{tints[0]}' if tints else 'plain'}"


def _mermaid_edge(edge: Edge) -> str:
    arrow = "-.->" if edge.handles else "-->"
    text = f"|{_coded(*edge.lines)}|" if edge.lines else ""
    return f"{edge.source} {arrow}{text} {edge.target}"


def _coded(*lines: str) -> str:
    """Lines as one quoted text, with markup in them as codes."""
    return f'"{"<br>".join(_SPECIAL.sub(lambda found: f"#{ord(found[0])};", printable(line)) for line in lines)}"'


_MERMAID = _Language(lambda each: (f"subgraph {each.id}[{_coded(each.title)}]",), "end", _mermaid_node, _mermaid_edge)
