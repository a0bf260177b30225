"""Rows of a process: its imports and exports, and its resources that are in no range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from memtopo.common.units import by_key
from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram, Export, HandleFlow, Resource
from memtopo.output.diagram import markup, notation
from memtopo.output.diagram.bar import badge, filled, stripe
from memtopo.output.diagram.markup import BODY, NAME, Box, Port, fitting, placed, rect, stacked, text_at, width
from memtopo.output.diagram.notation import DrawingContext

MOST_PARTS = 12
_TAG, _WIDEST_TAG = 66.0, 120.0
_PADDING, _TAG_GAP = 12.0, 8.0
_ROW_HEIGHT, _LINE = 34.0, 16.0
_ROOM_FOR_TEXT = 200.0  # in the column of the name
_PART_HEIGHT, _TRACK_HEIGHT = 20.0, 10.0
_SHORTEST_PART = 3.0
_PART_GAP = 16.0


class DrawnRow(Struct, frozen=True):
    """The kind of an entry, the mark of its memory, its name, its properties in words, and its parts.

    Parts are drawn in the colour of `device`, in a whole of `size` bytes.
    """

    tag: str
    mark: str
    name: str
    words: tuple[str, ...]
    path: Path
    port: Port = ()
    parts: tuple[Resource, ...] = ()
    device: str = ""
    size: int = 0


def rows_of(diagram: Diagram, process: str, flows: Sequence[HandleFlow]) -> list[DrawnRow]:
    """The rows of a process: imports, exports, and resources created here or made by another API."""
    imports = [flow for flow in flows if flow.target == process and not flow.external]
    resources = [each for each in diagram.things if not each.origin or each.external]
    exports = (_export_row(each, process) for each in diagram.exports)
    return [*_import_rows(diagram, process, imports), *exports, *map(_resource_row, resources)]


def _import_rows(diagram: Diagram, process: str, flows: Sequence[HandleFlow]) -> Iterator[DrawnRow]:
    marks = {span.origin: span.chunk for range_ in diagram.ranges for span in range_.pieces if span.origin}
    marks |= {resource.origin: resource.mark for resource in diagram.things if resource.origin}
    for name, group in by_key((flow.name, flow) for flow in flows).items():
        first = group[0]
        source = f"{first.source}/" if first.outside else f"{first.source.partition('.')[0]}."
        origin = f"{source}{first.export}"  # as the spec writes it
        size = _size(sum(flow.count * flow.processes for flow in group), first.bytes_each)
        via = (first.via,) if first.outside else ()
        text = (*size, f"from {origin}", *via)
        yield DrawnRow("import", marks.get(origin, ""), name, text, first.path, ("import", process, name))


def _export_row(export: Export, process: str) -> DrawnRow:
    chunks = notation.name_range(export.first, export.last)
    of = () if chunks == export.name else (chunks,)
    text = (*of, *_size(export.count, export.bytes_each), export.via)
    return DrawnRow("export", export.mark, export.name, text, export.path, ("export", process, export.name))


def _resource_row(resource: Resource) -> DrawnRow:
    where = ", ".join(notation.short_names(resource.locations))
    origin = f"from {resource.origin}" if resource.origin else ""
    size = _size(resource.count, resource.bytes_each)
    text = (*size, *filter(None, (where, origin, resource.via)), *resource.notes)
    whole = resource.parts, "".join(resource.locations[:1]), resource.bytes_each
    return DrawnRow(resource.kind, resource.mark, resource.name, text, resource.path, (), *whole)


def part_words(part: Resource) -> str:
    """Size and offset of a part."""
    return f"{notation.multiple(part.count, part.bytes_each)} at {notation.offset(part.offset)}"


def _size(count: int, size: int) -> tuple[str, ...]:
    if size:
        return (notation.multiple(count, size),)
    return (f"{count:,} ×",) if count > 1 else ()


def draw_rows(
    diagram: Diagram, process: str, flows: Sequence[HandleFlow], wide: float, context: DrawingContext
) -> list[Box]:
    """The rows of a process below one another, each with its port at both ends; empty if it has none."""
    rows, most = rows_of(diagram, process, flows), context.limits.rows
    shown = rows[:most]
    tag = max([_TAG, *(width(row.tag, markup.SMALL, markup.CAPITALS) + _TAG_GAP for row in shown)])
    boxes = [_draw_row(row, wide, min(tag, _WIDEST_TAG), context) for row in shown]
    if (more := len(rows) - most) > 0:
        boxes.append(Box(wide, 18, text_at(_PADDING, 13, f"… and {more:,} more", "w")))
    return [stacked(boxes, 6)] if boxes else []


def _draw_row(row: DrawnRow, wide: float, tag: float, context: DrawingContext) -> Box:
    left = _PADDING + tag
    content = [text_at(_PADDING, 21.5, fitting(row.tag.upper(), tag, markup.SMALL, markup.CAPITALS), "c w")]
    if row.mark:
        content += badge(context.letter(row.mark), left + 8, 17)
        left += 24
    under = left if wide - left - _PADDING >= _ROOM_FOR_TEXT else _PADDING
    text, height = _draw_text(row, left, under, wide - _PADDING)
    content.append(text)
    if row.parts:
        parts = _draw_parts(row, wide - under - _PADDING, context)
        content.append(placed(parts, under, height))
        height += parts.height + _PADDING
    tooltip = "\n".join([f"{row.tag} {row.name}", *row.words, *context.position(row.path)])
    frame = rect(0, 0, wide, height, "k", 6)
    return Box(wide, height, markup.hovered(tooltip, [frame, *content]), {row.port: 17.0} if row.port else {})


def _draw_text(row: DrawnRow, left: float, under: float, right: float) -> tuple[str, float]:
    """The name from `left` on, its words beside it or in lines from `under` on, and the height of both."""
    name = fitting(row.name, right - left, NAME)
    start, text = left + width(name, NAME) + 12, text_at(left, 21.5, name, "n")
    beside = markup.packed(row.words, right - start, BODY)
    if len(beside) <= 1 and all(width(line, BODY) <= right - start for line in beside):
        return text + "".join(text_at(start, 21.5, line, "w") for line in beside), _ROW_HEIGHT
    lines = markup.packed(row.words, right - under, BODY)
    below = (text_at(under, 38 + _LINE * index, line, "w") for index, line in enumerate(lines))
    return text + "".join(below), _ROW_HEIGHT + _LINE * len(lines) + 2


def _draw_parts(row: DrawnRow, room: float, context: DrawingContext) -> Box:
    """A line for each part with a track of the whole below it, in which the part is filled: parts may overlap."""
    boxes = [_draw_part(part, row, room, context) for part in row.parts[:MOST_PARTS]]
    if (more := len(row.parts) - MOST_PARTS) > 0:
        boxes.append(Box(room, _PART_HEIGHT, text_at(0, 14, f"… and {more:,} more", "w")))
    return stacked(boxes, 6)


def _draw_part(part: Resource, row: DrawnRow, room: float, context: DrawingContext) -> Box:
    words, top = part_words(part), _PART_HEIGHT
    text = text_at(0, 14, fitting(part.name, room, NAME), "n")
    if width(part.name, NAME) + _PART_GAP + width(words, BODY) <= room:
        text += text_at(room, 14, words, "w", anchor="end")
    else:
        text, top = text + text_at(0, 30, fitting(words, room, BODY), "w"), _PART_HEIGHT + 16
    bounds = part.offset, part.offset + part.count * part.bytes_each
    first, last = (room * min(1.0, each / row.size) if row.size else 0.0 for each in bounds)
    start, length = min(first, room - _SHORTEST_PART), max(_SHORTEST_PART, last - first)
    shape = filled([stripe(start, 0, length, _TRACK_HEIGHT)], row.device, context)
    whole, edge = rect(0, 0, room, _TRACK_HEIGHT, "o"), rect(start, 0, length, _TRACK_HEIGHT, "e")
    return Box(room, top + _TRACK_HEIGHT, text + placed(Box(room, _TRACK_HEIGHT, whole + shape + edge), 0, top))
