"""Layouts as graphs of bounded size: the nodes of each process, mappings, and flows of handles, as DOT and Mermaid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import Literal

from msgspec import Struct

from memtopo.common.text import output_line, printable
from memtopo.common.units import rounded
from memtopo.geometry.diagram import Diagram, HandleFlow, RangeDiagram
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import notation
from memtopo.output.diagram.notation import PLAIN, TINTS

MOST_NODES = 12
MOST_MAPPINGS = 3
"""Mappings of one chunk into one range that are listed one by one."""

Shape = Literal["memory", "object", "range", "export", "import", "outside", "more"]


class Node(Struct, frozen=True):
    """A node with its lines of text, the first of them its name, and the devices of its memory."""

    id: str
    shape: Shape
    lines: tuple[str, ...]
    devices: tuple[str, ...] = ()


class Edge(Struct, frozen=True):
    """A mapping, an export, a binding, or a flow of `handles`, between two nodes by their ids."""

    source: str
    target: str
    lines: tuple[str, ...] = ()
    handles: bool = False


class GraphCluster(Struct, frozen=True):
    """The nodes of one process, or of several equal ones."""

    id: str
    title: str
    nodes: tuple[Node, ...]


class Graph(Struct, frozen=True):
    """Clusters, nodes outside of them, and edges; `tints` are the indices of the tint of each device."""

    clusters: tuple[GraphCluster, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    tints: Mapping[str, int]


_Key = tuple[str, str, str]
"""Key of a node: its process, its shape, and its name."""
_Named = tuple[str, Iterable[str], tuple[str, ...]]
"""Name, lines and devices of a node."""


def graph(diagram: Diagram, most: int = MOST_NODES) -> Graph:
    """The graph of a diagram, with at most `most` processes, and as many nodes of one shape in each process."""
    made = _Nodes(diagram.flows, most)
    clusters = tuple(
        GraphCluster(f"p{index}", notation.title(each), tuple(made.of_process(each.first, each.picture)))
        for index, each in enumerate(diagram.processes[:most])
    )
    nodes = [*(() if clusters else made.of_process("", diagram)), *made.outside()]
    if more := sum(each.count for each in diagram.processes[most:]):
        nodes.append(Node("more", "more", (f"… and {more:,} more processes",)))
    if diagram.choices:
        nodes.append(Node("choices", "more", diagram.choices))
    edges = *_process_edges(diagram, made.ids), *_flow_edges(diagram.flows, made.ids)
    every = (node for group in (*(cluster.nodes for cluster in clusters), nodes) for node in group)
    devices = dict.fromkeys(chain((memory.device for memory in diagram.memory), *(node.devices for node in every)))
    return Graph(clusters, tuple(nodes), edges, {device: index % len(TINTS) for index, device in enumerate(devices)})


class _Nodes:
    """Nodes of a graph, and the id of each by its key."""

    def __init__(self, flows: Sequence[HandleFlow], most: int) -> None:
        self._flows, self._most, self._numbers = flows, most, count()
        self.ids: dict[_Key, str] = {}

    def of_process(self, process: str, diagram: Diagram) -> Iterator[Node]:
        """Nodes of one process."""
        things = (each for each in diagram.things if not each.mark and not each.origin and not each.bound)
        objects = ((each.name, (each.name, each.kind, ", ".join(each.locations)), each.locations) for each in things)
        yield from self._first(process, "memory", _memory_nodes(diagram))
        yield from self._first(process, "object", objects)
        yield from self._first(process, "import", _import_nodes(process, self._flows, diagram))
        yield from self._first(process, "range", map(_range_node, diagram.ranges))
        handles = ((each, f"{each.count:,} handles" if each.count > 1 else "1 handle") for each in diagram.exports)
        exports = ((each.name, (each.name, f"{number} by {each.via}"), ()) for each, number in handles)
        yield from self._first(process, "export", exports)

    def outside(self) -> Iterator[Node]:
        """A node for each holder outside of the spec."""
        holders = dict.fromkeys(flow.source for flow in self._flows if flow.outside)
        yield from self._first("", "outside", ((holder, (holder, "outside"), ()) for holder in holders))

    def _first(self, process: str, shape: Shape, found: Iterable[_Named]) -> Iterator[Node]:
        """The first nodes of a shape, and the number of those left out."""
        left = iter(found)
        for name, lines, devices in islice(left, self._most):
            self.ids[process, shape, name] = id = f"n{next(self._numbers)}"
            yield Node(id, shape, tuple(filter(None, lines)), devices)
        if more := sum(1 for _ in left):
            yield Node(f"n{next(self._numbers)}", "more", (f"… {more:,} more",))


def _memory_nodes(diagram: Diagram) -> Iterator[_Named]:
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
        size = ", ".join(notation.multiple(number, each) for each, number in sizes.items())
        resource = resources.get(mark)
        kind = resource.kind if resource and resource.noun else ""
        yield mark, (mark.rpartition(": ")[2], kind, size, ", ".join(devices[mark])), tuple(devices[mark])


def _import_nodes(process: str, flows: Iterable[HandleFlow], diagram: Diagram) -> Iterator[_Named]:
    """Imports, each once, from however many processes."""
    locations = {span.first.partition(".")[0]: span.locations for range_ in diagram.ranges for span in range_.pieces}
    resources = {resource.name: resource for resource in diagram.things if resource.origin}
    taken = {flow.name: flow for flow in flows if flow.target == process}
    counts = Counter[str]()
    for flow in flows:
        if flow.target == process:
            counts[flow.name] += flow.count * flow.processes
    for name, flow in taken.items():
        size = notation.multiple(counts[name], flow.bytes_each) if flow.bytes_each else flow.kind
        resource, devices, more = resources.get(name), locations.get(name, ()), []
        if resource:
            devices, parts = resource.locations, len(resource.parts)
            more = [", ".join(resource.notes), f"{parts:,} part{'s' * (parts > 1)}" if parts else ""]
        yield name, (name, size, *more, ", ".join(devices)), devices


def _range_node(range_: RangeDiagram) -> _Named:
    access = {span.access for span in range_.pieces if span.chunk}
    whole = notation.granted(access.pop()) if len(access) == 1 else ""
    mapped = f"{rounded(range_.mapped)} mapped" if range_.mapped < range_.size else ""
    size = notation.multiple(range_.count, range_.size)
    lines = notation.name_range(range_.first, range_.last), size, mapped, whole, notation.remark(range_)
    return range_.first, lines, ()


def _process_edges(diagram: Diagram, ids: Mapping[_Key, str]) -> Iterator[Edge]:
    """Mappings, exports and bindings of all processes, those between two nodes as one edge."""
    texts: dict[tuple[str, str], list[str]] = {}
    for process, shown in [("", diagram), *((each.first, each.picture) for each in diagram.processes)]:
        for source, target, text in chain(_mappings(process, shown, ids), _bindings_and_exports(process, shown)):
            if source in ids and target in ids:
                texts.setdefault((ids[source], ids[target]), []).append(text)
    for (start, end), lines in texts.items():
        more = len(lines) - MOST_MAPPINGS
        listed = [*filter(None, lines[:MOST_MAPPINGS]), *([f"… {more:,} more"] if more > 0 else [])]
        yield Edge(start, end, tuple(listed))


def _mappings(process: str, diagram: Diagram, ids: Mapping[_Key, str]) -> Iterator[tuple[_Key, _Key, str]]:
    for range_ in diagram.ranges:
        spans = [span for span in range_.pieces if span.chunk]
        same_access = len({span.access for span in spans}) < 2  # noqa: PLR2004
        for span in spans:
            access = "" if same_access else f", {notation.granted(span.access)}"
            text = f"{notation.chunk_names(span, range_.count)} at {notation.offset(span.offset)}{access}"
            name = span.first.partition(".")[0]
            source = (process, "import", name) if span.origin else (process, "memory", span.chunk)
            yield source if source in ids else (process, "object", name), (process, "range", range_.first), text


def _bindings_and_exports(process: str, diagram: Diagram) -> Iterator[tuple[_Key, _Key, str]]:
    imported = {each.name for each in diagram.things if each.origin}
    for each in diagram.things:
        target = (process, "import" if each.target in imported else "object", each.target)
        yield from (((process, "memory", mark), target, "bound") for mark in each.bound)
    for export in diagram.exports:
        source = (process, "memory", export.mark) if export.mark else (process, "object", export.first)
        yield source, (process, "export", export.name), ""


def _flow_edges(flows: Iterable[HandleFlow], ids: Mapping[_Key, str]) -> Iterator[Edge]:
    for flow in flows:
        source = ("", "outside", flow.source) if flow.outside else (flow.source, "export", flow.export)
        target = (flow.target, "import", flow.name)
        count = f"{flow.count:,} " if flow.count > 1 else ""
        sources = f" from each of {flow.processes:,}" if flow.processes > 1 else ""
        way = f"{count}by {flow.via}{sources}"
        if source in ids and target in ids:
            yield Edge(ids[source], ids[target], (flow.export, way) if flow.outside else (way,), handles=True)


_SHAPES: Mapping[Shape, tuple[str, str, str]] = {
    "memory": ("box", "[", "]"), "object": ("ellipse", "([", "])"), "range": ("box3d", "[[", "]]"),
    "export": ("cds", ">", "]"), "import": ("box", "[/", "/]"), "outside": ("component", "{{", "}}"),
    "more": ("plaintext", "[", "]"),
}  # fmt: skip
"""Shape of a node in DOT, and the brackets around its text in Mermaid."""


_HEAD = """\
  graph [rankdir=LR, fontname="Helvetica", labelloc=t, labeljust=l, nodesep=0.3, ranksep=0.8, compound=true];
  node [fontname="Helvetica", fontsize=11, margin="0.14,0.07"];
  edge [fontname="Helvetica", fontsize=9, color="#57606a", fontcolor="#24292f"];"""


def dot(drawing: Drawing) -> str:
    """A layout as a digraph of Graphviz."""
    shown = graph(drawing.diagram)
    lines = ["digraph memtopo {", _HEAD, f"  label={_quoted(drawing.title)};"]
    for each in shown.clusters:
        style = f'label={_quoted(each.title)}; style=rounded; color="{PLAIN.edge}"; fontsize=13;'
        lines += [f"  subgraph cluster_{each.id} {{", f"    {style}"]
        lines += [*(f"    {_dot_node(node, shown.tints)}" for node in each.nodes), "  }"]
    lines += [f"  {_dot_node(node, shown.tints)}" for node in shown.nodes]
    for edge in shown.edges:
        style = ', style=dashed, penwidth=1.6, color="#24292f"' if edge.handles else ""
        lines.append(f"  {edge.source} -> {edge.target} [label={_quoted(*edge.lines)}{style}];")
    return "".join(f"{line}\n" for line in (*lines, "}"))


def _dot_node(node: Node, indices: Mapping[str, int]) -> str:
    tints, shape = [TINTS[indices[device]] for device in node.devices] or [PLAIN], _SHAPES[node.shape][0]
    striped = len(tints) > 1 and shape == "box"
    style = ("striped" if striped else "filled") + (",dashed" if node.shape == "import" else "")
    fill = ":".join(tint.fill for tint in tints) if striped else tints[0].fill
    colours = f'fillcolor="{fill}", color="{tints[0].edge}"'
    return f'{node.id} [label={_quoted(*node.lines)}, shape={shape}, style="{style}", {colours}];'


def _quoted(*lines: str) -> str:
    """Lines as one quoted string, with escapes, entities and quotes in them escaped."""
    shown = (output_line(line) for line in lines)
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in shown)
    return '"' + "\\n".join(escaped) + '"'


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
    for each in shown.clusters:
        yield f"  subgraph {each.id}[{_coded(each.title)}]"
        yield from (f"    {_mermaid_node(node, shown.tints)}" for node in each.nodes)
        yield "  end"
    yield from (f"  {_mermaid_node(node, shown.tints)}" for node in shown.nodes)
    for edge in shown.edges:
        text = f"|{_coded(*edge.lines)}|" if edge.lines else ""
        yield f"  {edge.source} {'-.->' if edge.handles else '-->'}{text} {edge.target}"
    for index in range(min(len(shown.tints), len(TINTS))):
        yield f"  classDef d{index} fill:{TINTS[index].fill},stroke:{TINTS[index].edge},color:#000"
    for cluster in shown.clusters:
        yield f"  style {cluster.id} fill:none,stroke:{PLAIN.edge}"
    yield f"  classDef plain fill:{PLAIN.fill},stroke:{PLAIN.edge},color:#000"


def _mermaid_node(node: Node, tints: Mapping[str, int]) -> str:
    _, before, after = _SHAPES[node.shape]
    tint = f"d{tints[node.devices[0]]}" if node.devices else "plain"
    return f"{node.id}{before}{_coded(*node.lines)}{after}:::{tint}"


def _coded(*lines: str) -> str:
    """Lines as one quoted text, with markup in them as codes."""
    return f'"{"<br>".join(_SPECIAL.sub(lambda found: f"#{ord(found[0])};", printable(line)) for line in lines)}"'
