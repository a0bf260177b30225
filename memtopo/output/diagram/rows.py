"""Rows of a process: its imports and exports, and its resources that are in no range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram, Export, HandleFlow, Resource
from memtopo.output.diagram import notation
from memtopo.output.diagram.bar import badge
from memtopo.output.diagram.markup import (
    BODY,
    CAPITALS,
    NAME,
    SMALL,
    Box,
    Port,
    element,
    fitting,
    hovered,
    number,
    packed,
    placed,
    rect,
    stacked,
    text_at,
    width,
)
from memtopo.output.diagram.notation import DrawingContext

MOST_PARTS = 12
_TAG, _WIDEST_TAG = 66.0, 120.0
_PADDING, _TAG_GAP = 12.0, 8.0
_ROW_HEIGHT, _LINE = 34.0, 16.0
_ROOM_FOR_TEXT = 200.0  # in the column of the name
_PART_HEIGHT, _TRACK_HEIGHT = 20.0, 10.0
_SHORTEST_PART = 3.0
_PART_GAP = 16.0


@dataclass(frozen=True, slots=True)
class RowPart:
    """A part of a resource in words, with its start and end in the whole as fractions."""

    tag: str
    name: str
    words: str
    start: float
    end: float
    path: Path


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """The kind of an entry, the mark of its memory, its name, its properties in words, and its parts.

    Parts are drawn in the colour of `device`.
    """

    tag: str
    mark: str
    name: str
    words: tuple[str, ...]
    path: Path
    port: Port = ()
    parts: tuple[RowPart, ...] = ()
    device: str = ""


def rows_of(diagram: Diagram, process: str, flows: Sequence[HandleFlow]) -> list[DrawnRow]:
    """The rows of a process: imports, exports, and resources created here or made by another API."""
    imports = [flow for flow in flows if flow.target == process and not flow.external]
    resources = [each for each in diagram.things if not each.origin or each.external]
    exports = (_export_row(each, process) for each in diagram.exports)
    return [*_import_rows(diagram, process, imports), *exports, *map(_resource_row, resources)]


def import_port(process: str, name: str) -> Port:
    """The port of an import's row."""
    return "in", process, name


def export_port(process: str, name: str) -> Port:
    """The port of an export's row."""
    return "out", process, name


def _import_rows(diagram: Diagram, process: str, flows: Sequence[HandleFlow]) -> Iterator[DrawnRow]:
    groups: dict[str, list[HandleFlow]] = {}
    for flow in flows:
        groups.setdefault(flow.name, []).append(flow)
    marks = {span.origin: span.chunk for range_ in diagram.ranges for span in range_.pieces if span.origin}
    marks |= {resource.origin: resource.mark for resource in diagram.things if resource.origin}
    for name, group in groups.items():
        first = group[0]
        source = f"{first.source}/" if first.outside else f"{first.source.partition('.')[0]}."
        origin = f"{source}{first.export}"  # as the spec writes it
        size = _size(sum(flow.count * flow.processes for flow in group), first.bytes_each)
        via = (first.via,) if first.outside else ()
        text = (*size, f"from {origin}", *via)
        yield DrawnRow("import", marks.get(origin, ""), name, text, first.path, import_port(process, name))


def _export_row(export: Export, process: str) -> DrawnRow:
    chunks = notation.name_range(export.first, export.last)
    of = () if chunks == export.name else (chunks,)
    text = (*of, *_size(export.count, export.bytes_each), export.via)
    return DrawnRow("export", export.mark, export.name, text, export.path, export_port(process, export.name))


def _resource_row(resource: Resource) -> DrawnRow:
    where = ", ".join(notation.short_names(resource.locations))
    origin = f"from {resource.origin}" if resource.origin else ""
    size = _size(resource.count, resource.bytes_each)
    text = (*size, *filter(None, (where, origin, resource.via)), *resource.notes)
    parts = tuple(_part(part, resource.bytes_each) for part in resource.parts)
    device = "".join(resource.locations[:1])
    return DrawnRow(resource.kind, resource.mark, resource.name, text, resource.path, (), parts, device)


def _part(part: Resource, whole: int) -> RowPart:
    size = part.count * part.bytes_each
    start, end = (min(1.0, each / whole) if whole else 0.0 for each in (part.offset, part.offset + size))
    text = f"{notation.multiple(part.count, part.bytes_each)} at {notation.offset(part.offset)}"
    return RowPart(part.kind, part.name, text, start, end, part.path)


def _size(count: int, size: int) -> tuple[str, ...]:
    if size:
        return (notation.multiple(count, size),)
    return (f"{count:,} ×",) if count > 1 else ()


def draw_rows(rows: Sequence[DrawnRow], wide: float, context: DrawingContext) -> Box:
    """Rows below one another, each with its port at both ends."""
    most = context.limits.rows
    shown = rows[:most]
    tag = max([_TAG, *(width(row.tag, SMALL, CAPITALS) + _TAG_GAP for row in shown)])
    boxes = [_draw_row(row, wide, min(tag, _WIDEST_TAG), context) for row in shown]
    if (more := len(rows) - most) > 0:
        boxes.append(Box(wide, 18, text_at(_PADDING, 13, f"… and {more:,} more", "w")))
    return stacked(boxes, 6)


def _draw_row(row: DrawnRow, wide: float, tag: float, context: DrawingContext) -> Box:
    left = _PADDING + tag
    content = [text_at(_PADDING, 21.5, fitting(row.tag.upper(), tag, SMALL, CAPITALS), "c w")]
    if row.mark:
        content += badge(context.letter(row.mark), left + 8, 17)
        left += 24
    under = left if wide - left - _PADDING >= _ROOM_FOR_TEXT else _PADDING
    text, height = _draw_text(row, left, under, wide - _PADDING)
    content.append(text)
    if row.parts:
        parts = _draw_parts(row.parts, row.device, wide - under - _PADDING, context)
        content.append(placed(parts, under, height))
        height += parts.height + _PADDING
    tooltip = "\n".join([f"{row.tag} {row.name}", *row.words, *context.position(row.path)])
    frame = rect(0, 0, wide, height, "k", 6)
    return Box(wide, height, hovered(tooltip, [frame, *content]), {row.port: 17.0} if row.port else {})


def _draw_text(row: DrawnRow, left: float, under: float, right: float) -> tuple[str, float]:
    """The name from `left` on, its words beside it or in lines from `under` on, and the height of both."""
    name = fitting(row.name, right - left, NAME)
    start, text = left + width(name, NAME) + 12, text_at(left, 21.5, name, "n")
    beside = packed(list(row.words), right - start, BODY)
    if len(beside) <= 1 and all(width(line, BODY) <= right - start for line in beside):
        return text + "".join(text_at(start, 21.5, line, "w") for line in beside), _ROW_HEIGHT
    lines = packed(list(row.words), right - under, BODY)
    below = (text_at(under, 38 + _LINE * index, line, "w") for index, line in enumerate(lines))
    return text + "".join(below), _ROW_HEIGHT + _LINE * len(lines) + 2


def _draw_parts(parts: Sequence[RowPart], device: str, room: float, context: DrawingContext) -> Box:
    """A line for each part with a track of the whole below it, in which the part is filled: parts may overlap."""
    boxes = [_draw_part(part, room, device, context) for part in parts[:MOST_PARTS]]
    if (more := len(parts) - MOST_PARTS) > 0:
        boxes.append(Box(room, _PART_HEIGHT, text_at(0, 14, f"… and {more:,} more", "w")))
    return stacked(boxes, 6)


def _draw_part(part: RowPart, room: float, device: str, context: DrawingContext) -> Box:
    text, top = text_at(0, 14, fitting(part.name, room, NAME), "n"), _PART_HEIGHT
    if width(part.name, NAME) + _PART_GAP + width(part.words, BODY) <= room:
        text += text_at(room, 14, part.words, "w", end=True)
    else:
        text, top = text + text_at(0, 30, fitting(part.words, room, BODY), "w"), _PART_HEIGHT + 16
    return Box(room, top + _TRACK_HEIGHT, text + placed(_draw_track(part, room, device, context), 0, top))


def _draw_track(part: RowPart, wide: float, device: str, context: DrawingContext) -> Box:
    start = min(part.start * wide, wide - _SHORTEST_PART)
    length = max(_SHORTEST_PART, (part.end - part.start) * wide)
    shape = f"M{number(start)} 0h{number(length)}v{number(_TRACK_HEIGHT)}h-{number(length)}z"
    filled = element("path", {"d": shape, **context.fill(context.hue(device))})
    whole, edge = rect(0, 0, wide, _TRACK_HEIGHT, "o"), rect(start, 0, length, _TRACK_HEIGHT, "e")
    return Box(wide, _TRACK_HEIGHT, whole + filled + edge)
