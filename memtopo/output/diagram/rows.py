"""Rows: what a process takes from others, what it hands to them, and what else it has that lies in no range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memtopo.diagnostics.model import Path
from memtopo.output.diagram import notation
from memtopo.output.diagram.bar import badge
from memtopo.output.diagram.context import Pen
from memtopo.output.diagram.markup import Box, Port, element, hovered, number, placed, rect, stacked, words
from memtopo.output.diagram.model import Diagram, Export, HandleFlow, Resource
from memtopo.output.diagram.typography import CAPITALS, NAME, SMALL, WORDS, fitting, packed, width

_TAG, _WIDEST_TAG = 66.0, 120.0
_PAD, _APART = 12.0, 8.0
_ROW_HEIGHT, _LINE = 34.0, 16.0
_ROOMY = 200.0  # for words in the name's column


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the word for what it is, the mark of its memory, its name, what is said of it, and its parts.

    `device` is the one that parts are drawn in the colour of.
    """

    tag: str
    mark: str
    name: str
    words: tuple[str, ...]
    path: Path
    port: Port = ()
    parts: tuple[Part, ...] = ()
    device: str = ""


def listed(picture: Diagram, process: str, flows: Sequence[HandleFlow]) -> list[Row]:
    """The rows of a process: imports, exports, and what lies in no range: made here, or by another API."""
    taken = [flow for flow in flows if flow.target == process]
    imports = [flow for flow in taken if not flow.external]
    found = [*_imports(picture, process, imports), *(_export(each, process) for each in picture.exports)]
    things = [each for each in picture.things if not each.origin or each.external]
    return [*found, *map(_thing, things)]


def draw_rows(rows: Sequence[Row], wide: float, pen: Pen) -> Box:
    """Rows below one another, each with its port at both ends."""
    shown = rows[: pen.most.rows]
    tag = max([_TAG, *(width(row.tag, SMALL, CAPITALS) + _APART for row in shown)])
    boxes = [_row(row, wide, min(tag, _WIDEST_TAG), pen) for row in shown]
    if (more := len(rows) - pen.most.rows) > 0:
        boxes.append(Box(wide, 18, words(_PAD, 13, f"… and {more:,} more", "w")))
    return stacked(boxes, 6)


def _row(row: Row, wide: float, tag: float, pen: Pen) -> Box:
    left = _PAD + tag
    parts = [words(_PAD, 21.5, fitting(row.tag.upper(), tag, SMALL, CAPITALS), "c w")]
    if row.mark:
        parts += badge(pen.letter(row.mark), left + 8, 17)
        left += 24
    under = left if wide - left - _PAD >= _ROOMY else _PAD
    said, height = _said(row, left, under, wide - _PAD)
    parts.append(said)
    if row.parts:
        below = draw_parts(row.parts, row.device, wide - under - _PAD, pen)
        parts.append(placed(below, under, height))
        height += below.height + _PAD
    told = "\n".join([f"{row.tag} {row.name}", *row.words, *([place] if (place := pen.place(row.path)) else [])])
    ground = rect(0, 0, wide, height, "k", 6)
    return Box(wide, height, hovered(told, [ground, *parts]), {row.port: 17.0} if row.port else {})


def _said(row: Row, left: float, under: float, right: float) -> tuple[str, float]:
    """The name, from `left` on, and its words beside it, or in lines from `under` on; and the height of both."""
    name = fitting(row.name, right - left, NAME)
    start, told = left + width(name, NAME) + 12, words(left, 21.5, name, "n")
    beside = packed(list(row.words), right - start, WORDS)
    if len(beside) <= 1 and all(width(line, WORDS) <= right - start for line in beside):
        return told + "".join(words(start, 21.5, line, "w") for line in beside), _ROW_HEIGHT
    lines = packed(list(row.words), right - under, WORDS)
    below = (words(under, 38 + _LINE * turn, line, "w") for turn, line in enumerate(lines))
    return told + "".join(below), _ROW_HEIGHT + _LINE * len(lines) + 2


def _imports(picture: Diagram, process: str, flows: Sequence[HandleFlow]) -> Iterator[Row]:
    groups: dict[str, list[HandleFlow]] = {}
    for flow in flows:
        groups.setdefault(flow.name, []).append(flow)
    marks = {piece.origin: piece.chunk for shown in picture.ranges for piece in shown.pieces if piece.origin}
    marks |= {thing.origin: thing.mark for thing in picture.things if thing.origin}
    for name, group in groups.items():
        origin = source(group[0])
        told = (*_amount(sum(flow.count * flow.processes for flow in group), group[0].bytes_each), f"from {origin}")
        via = (group[0].via,) if group[0].outside else ()
        yield Row("import", marks.get(origin, ""), name, (*told, *via), group[0].path, ("in", process, name))


def source(flow: HandleFlow) -> str:
    """Where handles come from, as the spec writes it."""
    return f"{flow.source}/{flow.export}" if flow.outside else f"{flow.source.partition('.')[0]}.{flow.export}"


def _export(shown: Export, process: str) -> Row:
    of = notation.subjects(shown.first, shown.last)
    told = (*(() if of == shown.name else (of,)), *_amount(shown.count, shown.bytes_each), shown.via)
    return Row("export", shown.mark, shown.name, told, shown.path, ("out", process, shown.name))


def _thing(shown: Resource) -> Row:
    where = ", ".join(notation.few(shown.locations))
    origin = f"from {shown.origin}" if shown.origin else ""
    told = (*_amount(shown.count, shown.bytes_each), *filter(None, (where, origin, shown.via)), *shown.notes)
    parts = tuple(_part(each, shown.bytes_each) for each in shown.parts)
    return Row(shown.kind, shown.mark, shown.name, told, shown.path, (), parts, "".join(shown.locations[:1]))


def _amount(count: int, size: int) -> tuple[str, ...]:
    if size:
        return (notation.multiple(count, size),)
    return (f"{count:,} ×",) if count > 1 else ()


MOST_PARTS = 12
_PART_HEIGHT, _TRACK = 20.0, 10.0
_LEAST = 3.0  # pixels in which a part can be seen
_ROOM_FOR_TRACK = 120.0  # for a track beside the words
_GAP = 16.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part in words, and where it begins and ends in the whole, which is from 0 to 1."""

    tag: str
    name: str
    words: str
    start: float
    end: float
    path: Path


def _part(shown: Resource, whole: int) -> Part:
    """A part of a thing that has so many bytes."""
    size = shown.count * shown.bytes_each
    start, end = (min(1.0, each / whole) if whole else 0.0 for each in (shown.offset, shown.offset + size))
    told = f"{notation.multiple(shown.count, shown.bytes_each)} at {notation.offset(shown.offset)}"
    return Part(shown.kind, shown.name, told, start, end, shown.path)


def draw_parts(parts: Sequence[Part], device: str, room: float, pen: Pen) -> Box:
    """A line for each part, beside it the whole as a track in which it is filled; below it where that is narrow."""
    shown = parts[:MOST_PARTS]
    name = max(width(each.name, NAME) for each in shown) + _GAP
    told = max(width(each.words, WORDS) for each in shown) + _GAP
    beside = room - name - told >= _ROOM_FOR_TRACK
    boxes = [_line(each, min(name, room) if beside else 0, room, device, told, pen) for each in shown]
    if (more := len(parts) - MOST_PARTS) > 0:
        boxes.append(Box(room, _PART_HEIGHT, words(0, 14, f"… and {more:,} more", "w")))
    return stacked(boxes, 2 if beside else 6)


def _line(each: Part, column: float, room: float, device: str, told: float, pen: Pen) -> Box:
    if column:
        text = words(0, 14, each.name, "n") + words(column, 14, each.words, "w")
        track = _track(each, room - column - told, device, pen)
        return Box(room, _PART_HEIGHT, text + placed(track, column + told, (_PART_HEIGHT - _TRACK) / 2))
    text, top = words(0, 14, fitting(each.name, room, NAME), "n"), _PART_HEIGHT
    if width(each.name, NAME) <= room - told:
        text += words(room, 14, each.words, "w", end=True)
    else:
        text, top = text + words(0, 30, fitting(each.words, room, WORDS), "w"), _PART_HEIGHT + 16
    return Box(room, top + _TRACK, text + placed(_track(each, room, device, pen), 0, top))


def _track(each: Part, wide: float, device: str, pen: Pen) -> Box:
    start = min(each.start * wide, wide - _LEAST)
    length = max(_LEAST, (each.end - each.start) * wide)
    filled = {"d": f"M{number(start)} 0h{number(length)}v{number(_TRACK)}h-{number(length)}z"}
    ink = element("path", {**filled, **pen.ink(pen.hue(device))})
    return Box(wide, _TRACK, rect(0, 0, wide, _TRACK, "o") + ink + rect(start, 0, length, _TRACK, "e"))
