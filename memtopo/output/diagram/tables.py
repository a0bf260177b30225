"""The same facts as a drawing's, as tables: for those who do not see it, and for looking things up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memtopo.common.units import exact, rounded
from memtopo.output.diagram import notation, rows
from memtopo.output.diagram.context import Pen
from memtopo.output.diagram.model import Diagram, HandleFlow, MappingSpan, MemoryDiagram, RangeDiagram

MOST = 150
"""Rows of one table."""
MOST_TABLES = 60
MOST_IN_ALL = 1500
"""Rows of all tables: those of later ones are fewer."""

RANGE = ("chunk", "at", "size", "on", "handles", "access", "address", "written at")
OTHERS = ("kind", "name", "what", "written at")
MEMORY = ("chunk", "size", "in all", "written at")


class Table(NamedTuple):
    """A title, what is said of it, its columns, and its rows; columns without a word in any row are left out."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    more: int = 0

    def cut(self, most: int) -> Table:
        """The table with no more rows than that."""
        return self._replace(rows=self.rows[:most], more=self.more + max(0, len(self.rows) - most))


def tables(picture: Diagram, pen: Pen) -> Iterator[Table]:
    """Processes first, each with its ranges and what else it has, then memory."""
    for process in picture.processes:
        name = notation.processes(process)
        yield from _process(process.picture, process.first, f"{name}: ", picture.flows, pen)
    yield from _process(picture, "", "", picture.flows, pen)
    for memory in picture.memory:
        yield _memory(memory, pen)


def count(picture: Diagram) -> int:
    """How many tables there are, at most, without making them."""
    own = len(picture.ranges) + len(picture.memory) + 1
    return own + sum(len(process.picture.ranges) + 1 for process in picture.processes)


def _process(shown: Diagram, label: str, before: str, flows: tuple[HandleFlow, ...], pen: Pen) -> Iterator[Table]:
    told = [line for row in rows.listed(shown, label, flows) for line in _lines(row, pen)]
    if told:
        yield _table(f"{before}imports, exports and others", "", OTHERS, told[:MOST], len(told) - MOST)
    for each in shown.ranges:
        yield _range(each, label, before, pen)


def _lines(shown: rows.Row, pen: Pen) -> Iterator[tuple[str, ...]]:
    yield shown.tag, shown.name, ", ".join(shown.words), _written(shown.path, pen)
    for part in shown.parts:
        yield part.tag, part.name, part.words, _written(part.path, pen)


def _range(shown: RangeDiagram, label: str, before: str, pen: Pen) -> Table:
    base = pen.addresses.get((label, shown.first))
    told = [_piece(piece, shown.count, base, pen) for piece in shown.pieces[:MOST]]
    title = f"{before}{notation.subjects(shown.first, shown.last)}"
    note = f"{notation.multiple(shown.count, shown.size)}, {rounded(shown.mapped)} mapped"
    return _table(title, note if shown.count == 1 else f"{note} in each", RANGE, told, len(shown.pieces) - MOST)


def _piece(shown: MappingSpan, times: int, base: int | None, pen: Pen) -> tuple[str, ...]:
    address = "" if base is None else f"0x{base + shown.offset:x}"
    if not shown.chunk:
        return "hole", exact(shown.offset), rounded(shown.size), "", "", "", address, ""
    return (
        notation.of_all(shown, times) + (f", from {shown.origin}" if shown.origin else ""),
        exact(shown.offset),
        notation.multiple(shown.count, shown.bytes_each),
        ", ".join(map(pen.called, notation.few(shown.locations))),
        ", ".join(shown.handles),
        notation.granted(shown.access),
        address,
        _written(shown.path, pen),
    )


def _memory(shown: MemoryDiagram, pen: Pen) -> Table:
    told = [
        (share.chunk, notation.multiple(share.count, share.bytes_each), rounded(share.size), _written(share.path, pen))
        for share in shown.shares[:MOST]
    ]
    parts = [f"{rounded(shown.used)} used"]
    if shown.total is not None:
        parts.append(f"{rounded(shown.free or 0)} free of {rounded(shown.total)}")
    if shown.taken:
        parts.append(f"{rounded(shown.taken)} taken by others")
    return _table(f"memory of {pen.called(shown.device)}", ", ".join(parts), MEMORY, told, len(shown.shares) - MOST)


def _table(title: str, note: str, columns: tuple[str, ...], told: Sequence[tuple[str, ...]], more: int) -> Table:
    kept = [turn for turn in range(len(columns)) if any(row[turn] for row in told)]
    shown = [tuple(row[turn] for turn in kept) for row in told]
    return Table(title, note, tuple(columns[turn] for turn in kept), shown, max(0, more))


def _written(path: tuple[str | int, ...], pen: Pen) -> str:
    return (pen.place(path) or "") if path else ""
