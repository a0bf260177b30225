"""Legend of a drawing: the meaning of the signs that occur in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.output.diagram.bar import badge
from memtopo.output.diagram.context import SEVERAL, DrawingContext
from memtopo.output.diagram.markup import Box, curve, dot, element, number, path, rect, words
from memtopo.output.diagram.model import Diagram, MappingSpan, RangeDiagram, Resource
from memtopo.output.diagram.range_card import DrawnSpans, SpanPosition
from memtopo.output.diagram.typography import WORDS, fitting, width

_KEY, _GAP, _LINE = 28.0, 24.0, 24.0

_Entry = tuple[str, str]
"""The markup of a sign, and its meaning."""


def legend(diagram: Diagram, room: float, context: DrawingContext) -> Box:
    """Signs and their meanings, in as many lines as they need."""
    parts, x, y = [], 0.0, 0.0
    for sign, meaning in _entries(diagram, context):
        shown = fitting(meaning, room - _KEY, WORDS)
        wide = _KEY + width(shown, WORDS)
        if x and x + wide > room:
            x, y = 0.0, y + _LINE
        parts.append(f'<g transform="translate({number(x)} {number(y)})">{sign}{words(_KEY, 15, shown, "w")}</g>')
        x += wide + _GAP
    return Box(room, y + _LINE if parts else 0, "".join(parts))


def _entries(diagram: Diagram, context: DrawingContext) -> Iterator[_Entry]:
    ranges = list(_ranges(diagram))
    spans = [span for range_ in ranges for span in range_.pieces]
    used = _devices(diagram, spans)
    for device in context.devices:
        if device in used:
            yield _swatch(context.hue(device), context), f"on {context.device_name(device)}"
    yield from _access_entries(spans)
    if any(not span.chunk for span in spans):
        yield rect(0, 2, 20, 16, "o i"), "hole, no memory"
    if any(span.chunk for span in spans) or any(resource.mark for resource in _resources(diagram)):
        yield "".join(badge("a", 10, 10)), "same letter, same memory"
    marks = {span.chunk for span in spans if span.chunk}
    marks |= {share.chunk for memory in diagram.memory for share in memory.shares}
    if any(_folded(range_, context) for range_ in ranges) or len(marks) > len(context.letters):
        yield "".join(badge(SEVERAL, 10, 10)), "several, or one of many"
    if any(_mapped_twice(range_, context) for range_ in ranges):
        yield _link(), "mapped again"
    if any(not flow.outside for flow in diagram.flows):
        yield path(["M0 10H14"], "f") + path(["M21 10l-7 -4v8z"], "u"), "handles go from export to import"


def _access_entries(spans: Sequence[MappingSpan]) -> Iterator[_Entry]:
    access = {each.access for span in spans for each in span.access}
    if "rw" in access:
        yield rect(0, 2, 20, 16, "w", 4) + words(10, 14, "rw", "s v", middle=True), "may read and write"
    if "r" in access:
        yield rect(0, 2, 20, 16, "o", 4) + words(10, 14, "r", "s", middle=True), "may read"


def _swatch(hue: int, context: DrawingContext) -> str:
    return element("path", {"d": "M0 2h20v16H0z", **context.fill(hue)}) + rect(0, 2, 20, 16, "e")


def _link() -> str:
    return curve((16, 4), (16, 16), 0, "f") + dot(16, 4, "u", 2.5) + dot(16, 16, "u", 2.5)


def _ranges(diagram: Diagram) -> Iterator[RangeDiagram]:
    for process in diagram.processes:
        yield from _ranges(process.picture)
    yield from diagram.ranges


def _resources(diagram: Diagram) -> Iterator[Resource]:
    for process in diagram.processes:
        yield from _resources(process.picture)
    yield from diagram.things


def _folded(range_: RangeDiagram, context: DrawingContext) -> bool:
    """True if some spans of a range share a block."""
    return len(range_.pieces) > context.limits.blocks


def _mapped_twice(range_: RangeDiagram, context: DrawingContext) -> bool:
    """True if two blocks of a bar show the same memory."""
    drawn, here = DrawnSpans(), SpanPosition(range_.first, 0, 0)
    return not _folded(range_, context) and any(drawn.add(span, 1, here) for span in range_.pieces)


def _devices(diagram: Diagram, spans: Sequence[MappingSpan]) -> set[str]:
    with_parts = {name for each in _resources(diagram) if each.parts for name in each.locations[:1]}
    memories = {memory.device for memory in diagram.memory}
    return with_parts | memories | {name for span in spans for name in span.locations}
