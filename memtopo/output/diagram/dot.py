"""Layouts as graphs in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memtopo.common.text import output_line
from memtopo.geometry.diagram import Diagram
from memtopo.output.diagram.graph import Edge, Graph, Node, Shape, graph
from memtopo.output.diagram.palette import PLAIN, TINTS

_SHAPES: Mapping[Shape, str] = {
    "memory": "box", "object": "ellipse", "range": "box3d", "export": "cds", "import": "box", "outside": "component",
    "more": "plaintext",
}  # fmt: skip
_HEAD = """\
  graph [rankdir=LR, fontname="Helvetica", labelloc=t, labeljust=l, nodesep=0.3, ranksep=0.8, compound=true];
  node [fontname="Helvetica", fontsize=11, margin="0.14,0.07"];
  edge [fontname="Helvetica", fontsize=9, color="#57606a", fontcolor="#24292f"];"""


def dot(diagram: Diagram, title: str) -> str:
    """A diagram as a digraph."""
    return "".join(f"{line}\n" for line in _lines(graph(diagram), title))


def _lines(shown: Graph, title: str) -> Iterator[str]:
    devices = {device: index for index, device in enumerate(shown.devices)}
    yield "digraph memtopo {"
    yield _HEAD
    yield f"  label={quoted(title)};"
    for cluster in shown.clusters:
        yield f"  subgraph cluster_{cluster.id} {{"
        yield f'    label={quoted(cluster.title)}; style=rounded; color="{PLAIN.line}"; fontsize=13;'
        for node in cluster.nodes:
            yield f"    {_node(node, devices)}"
        yield "  }"
    for node in shown.nodes:
        yield f"  {_node(node, devices)}"
    for edge in shown.edges:
        yield f"  {_edge(edge)}"
    yield "}"


def _node(node: Node, devices: Mapping[str, int]) -> str:
    tints = [TINTS[devices[device] % len(TINTS)] for device in node.devices] or [PLAIN]
    fill = ":".join(tint.fill for tint in tints)
    striped = len(tints) > 1 and _SHAPES[node.shape] == "box"
    style = "striped" if striped else "filled"
    style += ",dashed" if node.shape == "import" else ""
    colours = f'fillcolor="{fill if striped else tints[0].fill}", color="{tints[0].line}"'
    return f'{node.id} [label={quoted(*node.lines)}, shape={_SHAPES[node.shape]}, style="{style}", {colours}];'


def _edge(edge: Edge) -> str:
    style = ', style=dashed, penwidth=1.6, color="#24292f"' if edge.handles else ""
    return f"{edge.source} -> {edge.target} [label={quoted(*edge.lines)}{style}];"


def quoted(*lines: str) -> str:
    """Lines as one quoted string, with escapes, entities and quotes in them escaped."""
    shown = (output_line(line) for line in lines)
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in shown)
    return '"' + "\\n".join(escaped) + '"'
