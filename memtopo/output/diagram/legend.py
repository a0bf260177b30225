"""The legend: what the signs of a drawing mean, and only of those that are in it."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.output.diagram.bar import badge
from memtopo.output.diagram.context import MANY, Pen
from memtopo.output.diagram.markup import Box, curve, dot, element, number, path, rect, words
from memtopo.output.diagram.model import Diagram, MappingSpan, RangeDiagram, Resource
from memtopo.output.diagram.range_card import Seen, Sight
from memtopo.output.diagram.typography import WORDS, fitting, width

_KEY, _GAP, _LINE = 28.0, 24.0, 24.0


def legend(picture: Diagram, room: float, pen: Pen) -> Box:
    """Keys and what they mean, in as many lines as they need."""
    parts, x, y = [], 0.0, 0.0
    for key, told in _entries(picture, pen):
        shown = fitting(told, room - _KEY, WORDS)
        wide = _KEY + width(shown, WORDS)
        if x and x + wide > room:
            x, y = 0.0, y + _LINE
        parts.append(f'<g transform="translate({number(x)} {number(y)})">{key}{words(_KEY, 15, shown, "w")}</g>')
        x += wide + _GAP
    return Box(room, y + _LINE if parts else 0, "".join(parts))


def _entries(picture: Diagram, pen: Pen) -> Iterator[tuple[str, str]]:
    found = [piece for shown in _ranges(picture) for piece in shown.pieces]
    used = [device for device in pen.devices if device in _places(picture, found)]
    for device in used:
        yield _swatch(pen.hue(device), pen), f"on {pen.called(device)}"
    allowed = {each.access for piece in found for each in piece.access}
    if "rw" in allowed:
        yield rect(0, 2, 20, 16, "w", 4) + words(10, 14, "rw", "s v", middle=True), "may read and write"
    if "r" in allowed:
        yield rect(0, 2, 20, 16, "o", 4) + words(10, 14, "r", "s", middle=True), "may read"
    if any(not piece.chunk for piece in found):
        yield rect(0, 2, 20, 16, "o i"), "hole, no memory"
    if any(piece.chunk for piece in found) or any(thing.mark for thing in _things(picture)):
        yield "".join(badge("a", 10, 10)), "same letter, same memory"
    if any(_folded(each, pen) for each in _ranges(picture)) or len(_marks(picture)) > len(pen.letters):
        yield "".join(badge(MANY, 10, 10)), "several, or one of many"
    if any(_doubled(each, pen) for each in _ranges(picture)):
        yield _link(), "mapped again"
    if any(not flow.outside for flow in picture.flows):
        yield path(["M0 10H14"], "f") + path(["M21 10l-7 -4v8z"], "u"), "handles go from export to import"


def _swatch(hue: int, pen: Pen) -> str:
    return element("path", {"d": "M0 2h20v16H0z", **pen.ink(hue)}) + rect(0, 2, 20, 16, "e")


def _link() -> str:
    return curve((16, 4), (16, 16), 0, "f") + dot(16, 4, "u", 2.5) + dot(16, 16, "u", 2.5)


def _ranges(picture: Diagram) -> Iterator[RangeDiagram]:
    for process in picture.processes:
        yield from _ranges(process.picture)
    yield from picture.ranges


def _things(picture: Diagram) -> Iterator[Resource]:
    for process in picture.processes:
        yield from _things(process.picture)
    yield from picture.things


def _folded(shown: RangeDiagram, pen: Pen) -> bool:
    """Whether pieces of a range are drawn together."""
    return len(shown.pieces) > pen.most.blocks


def _marks(picture: Diagram) -> set[str]:
    return {piece.chunk for shown in _ranges(picture) for piece in shown.pieces if piece.chunk} | {
        share.chunk for memory in picture.memory for share in memory.shares
    }


def _doubled(shown: RangeDiagram, pen: Pen) -> bool:
    """Whether a bar shows some memory twice."""
    seen, here = Seen(), Sight(shown.first, 0, 0)
    return not _folded(shown, pen) and any(seen.before(piece, 1, here) for piece in shown.pieces)


def _places(picture: Diagram, found: list[MappingSpan]) -> set[str]:
    inside = {name for thing in _things(picture) if thing.parts for name in thing.locations[:1]}
    return inside | {each.device for each in picture.memory} | {name for piece in found for name in piece.locations}
