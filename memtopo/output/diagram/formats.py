"""Formats of drawings, by name and by file suffix. The module of each format is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram


@dataclass(frozen=True, slots=True)
class Drawing:
    """A diagram with its title, a note below that, and the position in the spec of each path.

    `addresses` are those of the ranges of an applied layout, by process and range.
    """

    diagram: Diagram
    title: str
    note: str = ""
    locate: Callable[[Path], str | None] = lambda _path: None
    addresses: Mapping[tuple[str, str], int] = field(default_factory=dict)


def _dot(drawing: Drawing) -> str:
    from memtopo.output.diagram.graph import dot  # noqa: PLC0415 imported only if used: it adds to the start of a command

    return dot(drawing.diagram, drawing.title)


def _mermaid(drawing: Drawing) -> str:
    from memtopo.output.diagram.graph import mermaid  # noqa: PLC0415 likewise

    return mermaid(drawing.diagram, drawing.title)


def _svg(drawing: Drawing) -> str:
    from memtopo.output.diagram.svg import svg  # noqa: PLC0415 likewise

    return svg(drawing.diagram, drawing.title, note=drawing.note, locate=drawing.locate, addresses=drawing.addresses)


def _html(drawing: Drawing) -> str:
    from memtopo.output.diagram.html import page  # noqa: PLC0415 likewise

    return page(drawing.diagram, drawing.title, note=drawing.note, locate=drawing.locate, addresses=drawing.addresses)


FORMATS: Mapping[str, Callable[[Drawing], str]] = {"svg": _svg, "html": _html, "dot": _dot, "mermaid": _mermaid}
SUFFIXES: Mapping[str, str] = {".svg": "svg", ".html": "html", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid"}
