"""A layout as a graph, as data: what each process has, what is mapped where, and the handles that go between them.

Its words are as the picture has them: whoever writes the graph down escapes them. Ids are made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
