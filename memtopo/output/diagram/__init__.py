"""Drawings of layouts: formats by name and by file suffix. The module of each format is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from memtopo.output import humanize
from memtopo.output.blocks import Block, Drawing, Page, Section, notes, sections

if TYPE_CHECKING:
    from memtopo.output.json import PictureDocument


def page(drawing: Drawing) -> str:
    """A drawing as an HTML document, with its content as tables."""
    from memtopo.output import html  # noqa: PLC0415 imported only if used: it adds to the start of a command
    from memtopo.output.diagram.notation import drawing_context  # noqa: PLC0415 as above
    from memtopo.output.diagram.tables import MOST_TABLES, table_count, tables  # noqa: PLC0415 as above

    diagram = drawing.diagram
    context = drawing_context(drawing)
    found: list[Block] = ["What the drawing shows, line by line.", *islice(tables(diagram, context), MOST_TABLES)]
    if len(found) > MOST_TABLES and (more := table_count(diagram) - MOST_TABLES) > 0:
        found.append(f"… and about {more:,} more tables")
    over_time = [Section("memory over time", [drawing.timeline])] if drawing.timeline else []
    sections = [Section("", [drawing]), *over_time, Section("In words", found)]
    return html.document(Page("draw", drawing.title, drawing.note, sections=sections))


def _written(module: str, function: str) -> Callable[[Drawing], str]:
    return lambda drawing: getattr(import_module(f"memtopo.output.diagram.{module}"), function)(drawing)


FORMATS: Mapping[str, Callable[[Drawing], str]] = {
    "svg": _written("svg", "svg"), "html": page,
    "dot": _written("graph", "dot"), "mermaid": _written("graph", "mermaid"),
}  # fmt: skip
SUFFIXES: Mapping[str, str] = {".svg": "svg", ".html": "html", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid"}


def text_page(document: PictureDocument, shown: Drawing, *, ascii: bool) -> Page:
    """Text output of `memtopo draw`, in ASCII if `ascii`."""
    name = document.name if document.state is None else f"{document.name} in state {document.state}"
    found = [*sections(replace(shown, ascii=ascii)), *notes(document.picture.choices)]
    return Page("draw", name, f"on {humanize.machine(document.machine)}", sections=found)
