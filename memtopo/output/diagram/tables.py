"""The content of a drawing as tables, as an alternative text and for reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from memtopo.common.units import exact, rounded
from memtopo.geometry.diagram import Diagram, MappingSpan, MemoryDiagram, RangeDiagram
from memtopo.output.blocks import Cell, Column, Drawing, Table, columns
from memtopo.output.diagram import notation
from memtopo.output.diagram.cards import DrawnRow, free_and_taken, part_words, rows_of
from memtopo.output.diagram.notation import DrawingContext, drawing_context

MOST_TABLES = 60
MOST_TABLE_ROWS = 150
"""Rows of one table."""
MOST_SENTENCES = 12
"""Tables and rows of a table in a description."""

Cells = tuple[str, ...]

_RANGE = columns("chunk", "at", "size", "on", "handles", "access", "address", "written at")
_ROWS = columns("kind", "name", "what", "written at")
_MEMORY = columns("chunk", "size", "in all", "written at")


def tables(diagram: Diagram, context: DrawingContext) -> Iterator[Table]:
    """Tables of each process, with its rows and ranges, then of each memory."""
    for process in diagram.processes:
        prefix = f"process {notation.title(process)}: "
        yield from _process_tables(process.picture, process.first, prefix, context)
    yield from _process_tables(diagram, "", "", context)
    for memory in diagram.memory:
        yield _memory_table(memory, context)


def table_count(diagram: Diagram) -> int:
    """Number of tables at most, without making them."""
    own = len(diagram.ranges) + len(diagram.memory) + 1
    return own + sum(len(process.picture.ranges) + 1 for process in diagram.processes)


def description(diagram: Diagram, context: DrawingContext | None = None) -> str:
    """A diagram in sentences, of bounded length: one for each of its first tables."""
    found = map(_sentence, islice(tables(diagram, context or drawing_context(Drawing(diagram))), MOST_SENTENCES))
    more = table_count(diagram) - MOST_SENTENCES
    rest = [f"And about {more:,} more."] if more > 0 else []
    return " ".join([*found, *rest, *(f"{choice}." for choice in diagram.choices)]) or "Nothing."


def _sentence(table: Table) -> str:
    heads = [column.heading for column in table.columns]
    rows = [", ".join(_words(heads, row)) for row in table.rows[:MOST_SENTENCES]]
    rows += [f"{more:,} more"] if (more := table.more + len(table.rows) - len(rows)) else []
    about = ", ".join(filter(None, (table.caption, table.note)))
    return f"{about[:1].upper()}{about[1:]}: {'; '.join(rows)}."


def _words(heads: Sequence[str], row: Sequence[Cell]) -> Iterator[str]:
    cells = {head: str(cell) for head, cell in zip(heads, row, strict=True) if cell}
    name = " ".join(cells.pop(head) for head in ("kind", "name") if head in cells)
    found = (f"{head} {cell}" if head in ("at", "on") else cell for head, cell in cells.items() if head != "written at")
    yield from filter(None, (name, *found))


def _process_tables(diagram: Diagram, process: str, prefix: str, context: DrawingContext) -> Iterator[Table]:
    lines = [line for row in rows_of(diagram, process, context.flows) for line in _row_lines(row, context)]
    if lines:
        yield _table(f"{prefix}imports, exports and others", "", _ROWS, lines[:MOST_TABLE_ROWS], len(lines))
    for range_ in diagram.ranges:
        yield _range_table(range_, process, prefix, context)


def _row_lines(row: DrawnRow, context: DrawingContext) -> Iterator[Cells]:
    yield row.tag, row.name, ", ".join(row.words), context.written_at(row.path)
    for part in row.parts:
        yield part.kind, part.name, part_words(part), context.written_at(part.path)


def _range_table(range_: RangeDiagram, process: str, prefix: str, context: DrawingContext) -> Table:
    address = context.addresses.get((process, range_.first))
    lines = [_span_line(span, range_.count, address, context) for span in range_.pieces[:MOST_TABLE_ROWS]]
    title = f"{prefix}{'range' if range_.count == 1 else 'ranges'} {notation.name_range(range_.first, range_.last)}"
    note = f"{notation.multiple(range_.count, range_.size)}, {rounded(range_.mapped)} mapped"
    note += f", {remark}" if (remark := notation.remark(range_)) else ""
    return _table(title, note if range_.count == 1 else f"{note} in each", _RANGE, lines, len(range_.pieces))


def _span_line(span: MappingSpan, count: int, address: int | None, context: DrawingContext) -> Cells:
    words = notation.span_words(span, count)
    return (
        ", ".join(filter(None, (words.name or "hole", span.origin and f"from {span.origin}", words.parts))),
        exact(span.offset),
        words.size,
        context.placement(span),
        ", ".join(span.handles),
        notation.granted(span.access) if span.chunk else "",
        "" if address is None else f"0x{address + span.offset:x}",
        context.written_at(span.path),
    )


def _memory_table(memory: MemoryDiagram, context: DrawingContext) -> Table:
    lines = [
        (each.chunk, notation.multiple(each.count, each.bytes_each), rounded(each.size), context.written_at(each.path))
        for each in memory.shares[:MOST_TABLE_ROWS]
    ]
    note = ", ".join([notation.used_bytes(memory), *free_and_taken(memory)])
    return _table(f"memory of {context.device_name(memory.device)}", note, _MEMORY, lines, len(memory.shares))


def _table(title: str, note: str, heads: Sequence[Column], lines: Sequence[Cells], total: int) -> Table:
    """A table without the columns that would be empty; `total` counts the rows with those left out."""
    return Table(heads, lines, title, note, max(0, total - MOST_TABLE_ROWS)).filled()
