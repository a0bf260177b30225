"""Layouts as Mermaid flowcharts, which GitHub draws in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memtopo.common.text import printable
from memtopo.geometry.diagram import Diagram
from memtopo.output.diagram.graph import MOST_NODES, Edge, Graph, Node, Shape, graph
from memtopo.output.diagram.palette import PLAIN, TINTS

MOST_CHARACTERS = 45_000
MOST_EDGES = 450
"""GitHub draws at most 50,000 characters and 500 edges."""

_SHAPES: Mapping[Shape, tuple[str, str]] = {
    "memory": ("[", "]"), "object": ("([", "])"), "range": ("[[", "]]"), "export": (">", "]"), "import": ("[/", "/]"),
    "outside": ("{{", "}}"), "more": ("[", "]"),
}  # fmt: skip

# All but characters that have no meaning in Markdown, HTML and Mermaid.
_SPECIAL = re.compile(r"[^A-Za-z0-9 ,.()×…/_+=-]")


def mermaid(diagram: Diagram, title: str) -> str:
    """A diagram as a flowchart; of a large one as much as GitHub draws."""
    for most in (MOST_NODES, MOST_NODES // 2, MOST_NODES // 4, 1):
        shown = graph(diagram, most)
        text = "".join(f"{line}\n" for line in _lines(shown, title))
        if len(text) <= MOST_CHARACTERS and len(shown.edges) <= MOST_EDGES:
            break
    return text


def _lines(shown: Graph, title: str) -> Iterator[str]:
    yield "flowchart LR"
    yield f"  accTitle: {_plain(title)}"
    devices = {device: index % len(TINTS) for index, device in enumerate(shown.devices)}
    for cluster in shown.clusters:
        yield f"  subgraph {cluster.id}[{quoted(cluster.title)}]"
        for node in cluster.nodes:
            yield f"    {_node(node, devices)}"
        yield "  end"
    for node in shown.nodes:
        yield f"  {_node(node, devices)}"
    for edge in shown.edges:
        yield f"  {_edge(edge)}"
    for index in sorted(set(devices.values())):
        yield f"  classDef d{index} fill:{TINTS[index].fill},stroke:{TINTS[index].line},color:#000"
    for cluster in shown.clusters:
        yield f"  style {cluster.id} fill:none,stroke:{PLAIN.line}"
    yield f"  classDef plain fill:{PLAIN.fill},stroke:{PLAIN.line},color:#000"


def _node(node: Node, devices: Mapping[str, int]) -> str:
    before, after = _SHAPES[node.shape]
    style = f"d{devices[node.devices[0]]}" if node.devices else "plain"
    return f"{node.id}{before}{quoted(*node.lines)}{after}:::{style}"


def _edge(edge: Edge) -> str:
    arrow = "-.->" if edge.handles else "-->"
    text = f"|{quoted(*edge.lines)}|" if edge.lines else ""
    return f"{edge.source} {arrow}{text} {edge.target}"


def quoted(*lines: str) -> str:
    """Lines as one quoted text, with markup in them escaped."""
    return f'"{"<br>".join(_SPECIAL.sub(lambda found: f"#{ord(found[0])};", printable(line)) for line in lines)}"'


def _plain(title: str) -> str:
    return re.sub(r"[^\w ,.()-]", " ", printable(title)).strip() or "layout"
