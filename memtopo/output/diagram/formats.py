"""Formats of drawings, by name and by file suffix. The module of each format is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice

from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram
from memtopo.output import blocks, humanize
from memtopo.output.blocks import Block, Page, Section, notes, sections
from memtopo.output.json import PictureDocument


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


def page(drawing: Drawing) -> str:
    """A drawing as an HTML document, with its content as tables."""
    from memtopo.output import html  # noqa: PLC0415 imported only if used: it adds to the start of a command
    from memtopo.output.diagram.context import drawing_context  # noqa: PLC0415 likewise
    from memtopo.output.diagram.tables import MOST_TABLES, table_count, tables  # noqa: PLC0415 likewise

    diagram = drawing.diagram
    context = drawing_context(diagram, drawing.locate, drawing.addresses)
    found: list[Block] = ["What the drawing shows, line by line.", *islice(tables(diagram, context), MOST_TABLES)]
    if len(found) > MOST_TABLES and (more := table_count(diagram) - MOST_TABLES) > 0:
        found.append(f"… and about {more:,} more tables")
    shown = blocks.Drawing(diagram, drawing.addresses, locate=drawing.locate)
    sections = [Section("", [shown]), Section("In words", found)]
    return html.document(Page("draw", drawing.title, drawing.note, sections=sections))


def _late(module: str, name: str) -> Callable[[Drawing], str]:
    """A writer of drawings, whose module is imported when it is used: it adds to the start of a command."""
    return lambda drawing: str(getattr(import_module(f"memtopo.output.diagram.{module}"), name)(drawing))


FORMATS: Mapping[str, Callable[[Drawing], str]] = {
    "svg": _late("svg", "svg"),
    "html": page,
    "dot": _late("graph", "dot"),
    "mermaid": _late("graph", "mermaid"),
}
SUFFIXES: Mapping[str, str] = {".svg": "svg", ".html": "html", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid"}


def text_page(document: PictureDocument, *, ascii: bool) -> Page:
    """Text output of `memtopo draw`, in ASCII if `ascii`."""
    name = document.name if document.state is None else f"{document.name} in state {document.state}"
    drawn = sections(blocks.Drawing(document.picture, ascii=ascii))
    return Page(
        "draw", name, f"on {humanize.machine(document.machine)}", sections=[*drawn, *notes(document.picture.choices)]
    )
