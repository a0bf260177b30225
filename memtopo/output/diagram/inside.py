"""What is inside of a thing: each part with its own place to scale, since parts may overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memtopo.diagnostics.model import Path
from memtopo.output.diagram import wording
from memtopo.output.diagram.box import Box, placed, rect, stacked, words
from memtopo.output.diagram.markup import element, number
from memtopo.output.diagram.model import Resource
from memtopo.output.diagram.pen import Pen
from memtopo.output.diagram.style import NAME, WORDS
from memtopo.output.diagram.typeset import fitting, width

MOST = 12
_HIGH, _TRACK = 20.0, 10.0
_LEAST = 3.0  # pixels in which a part can be seen
_ROOMY = 120.0  # for a track beside the words
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


def part(shown: Resource, whole: int) -> Part:
    """A part of a thing that has so many bytes."""
    size = shown.count * shown.bytes_each
    start, end = (min(1.0, each / whole) if whole else 0.0 for each in (shown.offset, shown.offset + size))
    told = f"{wording.multiple(shown.count, shown.bytes_each)} at {wording.offset(shown.offset)}"
    return Part(shown.kind, shown.name, told, start, end, shown.path)


def drawn(parts: Sequence[Part], device: str, room: float, pen: Pen) -> Box:
    """A line for each part, beside it the whole as a track in which it is filled; below it where that is narrow."""
    shown = parts[:MOST]
    name = max(width(each.name, NAME) for each in shown) + _GAP
    told = max(width(each.words, WORDS) for each in shown) + _GAP
    beside = room - name - told >= _ROOMY
    boxes = [_line(each, min(name, room) if beside else 0, room, device, told, pen) for each in shown]
    if (more := len(parts) - MOST) > 0:
        boxes.append(Box(room, _HIGH, words(0, 14, f"… and {more:,} more", "w")))
    return stacked(boxes, 2 if beside else 6)


def _line(each: Part, column: float, room: float, device: str, told: float, pen: Pen) -> Box:
    if column:
        text = words(0, 14, each.name, "n") + words(column, 14, each.words, "w")
        track = _track(each, room - column - told, device, pen)
        return Box(room, _HIGH, text + placed(track, column + told, (_HIGH - _TRACK) / 2))
    text, top = words(0, 14, fitting(each.name, room, NAME), "n"), _HIGH
    if width(each.name, NAME) <= room - told:
        text += words(room, 14, each.words, "w", end=True)
    else:
        text, top = text + words(0, 30, fitting(each.words, room, WORDS), "w"), _HIGH + 16
    return Box(room, top + _TRACK, text + placed(_track(each, room, device, pen), 0, top))


def _track(each: Part, wide: float, device: str, pen: Pen) -> Box:
    start = min(each.start * wide, wide - _LEAST)
    length = max(_LEAST, (each.end - each.start) * wide)
    filled = {"d": f"M{number(start)} 0h{number(length)}v{number(_TRACK)}h-{number(length)}z"}
    ink = element("path", {**filled, **pen.ink(pen.hue(device))})
    return Box(wide, _TRACK, rect(0, 0, wide, _TRACK, "o") + ink + rect(start, 0, length, _TRACK, "e"))
