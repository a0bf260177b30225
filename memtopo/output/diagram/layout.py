"""Zones: where the cards of a process and those of memory stand, in the room that there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.output.diagram import memory_card, notation, range_card, rows
from memtopo.output.diagram.card import Card, grid, pad
from memtopo.output.diagram.context import Pen
from memtopo.output.diagram.markup import Box, Port, beside, number, path, placed, rect, stacked, words
from memtopo.output.diagram.model import Diagram, HandleFlow, MemoryDiagram, ProcessDiagram
from memtopo.output.diagram.range_card import Seen
from memtopo.output.diagram.typography import NAME, fitting

NARROWEST = 288.0
GAP = 16.0

_APART = 12.0
_BESIDE = 4  # memories that stand beside addresses; more of them stand below
_WIDEST = 448.0
_TALLEST = 760.0  # that a range is made so that it is as high as the memories beside it


def process(shown: Diagram, label: str, flows: Sequence[HandleFlow], room: float, tall: float, pen: Pen) -> Box:
    """The rows and ranges of one process of several, at least `tall` where a range can be made higher.

    Rows come first, so that lines between processes are short.
    """
    head = _listed(shown, label, flows, room, pen)
    return stacked([*head, *_spaces(shown, label, room, pen, _left(tall, head))], _APART)


def alone(shown: Diagram, room: float, pen: Pen) -> Box:
    """A layout of one process: addresses on the left and memory on the right, or below where there is less room."""
    if not shown.memory or not shown.ranges or len(shown.memory) > _BESIDE or room < NARROWEST * 2 + GAP:
        above = _single(shown, room, 0, pen)
        return stacked([box for box in (above, memories(shown.memory, room, pen)) if box.height], GAP)
    cards = [memory_card.card(each, pen) for each in shown.memory]
    right = grid(cards, 1, NARROWEST, GAP)
    left = _single(shown, room - NARROWEST - GAP, min(right.height, _TALLEST), pen)
    if left.height > right.height and len(cards) == 1:
        right = grid(cards, 1, NARROWEST, GAP, left.height)
    return beside([left, right], GAP)


def _single(shown: Diagram, room: float, tall: float, pen: Pen) -> Box:
    tail = _listed(shown, "", shown.flows, room, pen)
    return stacked([*_spaces(shown, "", room, pen, _left(tall, tail)), *tail], _APART)


def _left(tall: float, rows: Sequence[Box]) -> float:
    """The height that rows leave."""
    return tall - sum(box.height + _APART for box in rows)


def memories(shown: Sequence[MemoryDiagram], room: float, pen: Pen, most: float = _WIDEST) -> Box:
    """The memory of all processes, each at most so wide."""
    return _zone([memory_card.card(each, pen) for each in shown], room, most=most)


def _listed(shown: Diagram, label: str, flows: Sequence[HandleFlow], room: float, pen: Pen) -> list[Box]:
    found = rows.listed(shown, label, flows)
    return [rows.draw_rows(found, room, pen)] if found else []


def _spaces(shown: Diagram, label: str, room: float, pen: Pen, tall: float = 0) -> Iterator[Box]:
    seen = Seen()
    cards = [range_card.card(each, label, pen, seen) for each in shown.ranges[: pen.most.ranges]]
    if cards:
        yield _zone(cards, room, tall)
    if more := sum(each.count for each in shown.ranges[pen.most.ranges :]):
        yield Box(room, 20, words(0, 14, f"… and {more:,} more ranges", "w"))


def _zone(cards: Sequence[Card], room: float, tall: float = 0, most: float = 1e9) -> Box:
    columns = max(1, min(len(cards), int((room + GAP) // (NARROWEST + GAP))))
    return grid(cards, columns, min(most, (room - GAP * (columns - 1)) / columns), GAP, tall)


MOST_PROCESSES = 12
_FRAME_GAP = 20.0
_HEAD = 46.0


@dataclass(frozen=True, slots=True)
class _Column:
    """Frames below one another, from `x` on; `channel` is the room on their left for lines."""

    shown: Sequence[ProcessDiagram]
    channel: float = 0.0


def frames(picture: Diagram, room: float, pen: Pen) -> Box:
    """Every process of a picture with the flows between them, and the memory of all."""
    inside = [flow for flow in picture.flows if not flow.outside]
    columns = _columns(picture.processes[:MOST_PROCESSES], inside, room)
    wide = (room - sum(column.channel for column in columns)) / len(columns)
    stacks = _stacks(columns, picture, wide, pen)
    starts = [sum(wide + each.channel for each in columns[:turn]) for turn in range(len(columns))]
    lefts = [start + column.channel for start, column in zip(starts, columns, strict=True)]
    ends = {
        port: End(left, left + wide, y, turn)
        for turn, (left, stack) in enumerate(zip(lefts, stacks, strict=True))
        for port, y in stack.ports.items()
    }
    lines = draw_lines(_lines(inside, ends), starts, [column.channel for column in columns])
    parts = [placed(stack, left, 0) for left, stack in zip(lefts, stacks, strict=True)]
    height = max(stack.height for stack in stacks)
    below: list[Box] = []
    memory = memories(picture.memory, wide, pen, most=wide)
    if shorter := _room_for(memory, stacks):
        parts.append(placed(memory, lefts[shorter.column], shorter.y))
        height = max(height, shorter.y + memory.height)
    else:
        below.append(memories(picture.memory, room, pen))
    if more := sum(each.count for each in picture.processes[MOST_PROCESSES:]):
        below.insert(0, Box(room, 20, words(0, 14, f"… and {more:,} more processes", "w")))
    return stacked([Box(room, height, "".join([*parts, *lines])), *below], _FRAME_GAP)


class _Free(NamedTuple):
    """Room below the frames of a column, from `y` on."""

    column: int
    y: float


def _room_for(memory: Box, stacks: Sequence[Box]) -> _Free | None:
    """Where memory stands beside frames rather than below all of them, if one column is that much shorter."""
    heights = [stack.height for stack in stacks]
    shortest = heights.index(min(heights))
    y = heights[shortest] + _FRAME_GAP
    return _Free(shortest, y) if y + memory.height <= max(heights) + _FRAME_GAP and len(stacks) > 1 else None


def _lines(flows: Sequence[HandleFlow], ends: Mapping[Port, End]) -> list[Line]:
    pairs = [(("out", flow.source, flow.export), ("in", flow.target, flow.name)) for flow in flows]
    return [Line(ends[start], ends[end]) for start, end in pairs if start in ends and end in ends]


def _stacks(columns: Sequence[_Column], picture: Diagram, wide: float, pen: Pen) -> list[Box]:
    """The frames of each column below one another; single ones beside one another are equally high."""
    stacks = [
        stacked([_frame(each, picture.flows, wide, 0, pen) for each in column.shown], _FRAME_GAP) for column in columns
    ]
    if any(len(column.shown) > 1 for column in columns):
        return stacks
    tall = max(stack.height for stack in stacks)
    return [_frame(column.shown[0], picture.flows, wide, tall, pen) for column in columns]


def _columns(processes: Sequence[ProcessDiagram], flows: Sequence[HandleFlow], room: float) -> list[_Column]:
    takers = {flow.target for flow in flows if flow.target != flow.source}
    givers = [each for each in processes if each.first not in takers]
    others = [each for each in processes if each.first in takers]
    if room < NARROWEST * 2 + 100 or len(processes) == 1:
        return [_Column(processes, channel(len(flows)))]
    if not givers or not others:
        half = (len(processes) + 1) // 2
        givers, others = list(processes[:half]), list(processes[half:])
    columns = {each.first: turn for turn, column in enumerate((givers, others)) for each in column}
    return [
        _Column(givers, channel(_own(flows, columns, 0))),
        _Column(others, channel(len(flows) - _own(flows, columns, 0)) + 16),
    ]


def _own(flows: Sequence[HandleFlow], columns: dict[str, int], column: int) -> int:
    """Flows that stay in a column."""
    return sum(columns.get(flow.source) == columns.get(flow.target) == column for flow in flows)


def _frame(shown: ProcessDiagram, flows: Sequence[HandleFlow], wide: float, tall: float, pen: Pen) -> Box:
    edge = pad(wide)
    room = wide - 2 * edge
    content = process(shown.picture, shown.first, flows, room, tall - _HEAD - 2 * edge, pen)
    kind = "PROCESS" if shown.count == 1 else f"{shown.count:,} PROCESSES"
    name = fitting(notation.processes(shown), room, NAME + 1.5)
    height = max(tall, _HEAD + content.height + 2 * edge)
    head = [rect(0, 0, wide, height, "b", 10), words(edge, edge + 10, kind, "c w"), words(edge, edge + 30, name, "n a")]
    top = edge + _HEAD
    ports = {port: top + y for port, y in content.ports.items()}
    return Box(wide, height, "".join([*head, placed(content, edge, top)]), ports)


MOST_LINES = 24
_LINES_APART = 8.0
_ROUND = 8.0


class End(NamedTuple):
    """Left and right edge of a frame, the height in it, and its column."""

    left: float
    right: float
    y: float
    column: int


class Line(NamedTuple):
    """From an export's row to an import's."""

    start: End
    end: End


def channel(lines: int) -> float:
    """The room that lines beside one another need."""
    return 16 + _LINES_APART * min(lines, MOST_LINES) if lines else 0.0


def draw_lines(lines: Sequence[Line], starts: Sequence[float], rooms: Sequence[float]) -> Iterator[str]:
    """Lines through the channels of columns, which begin at `starts` and have `rooms`."""
    turns: dict[int, int] = {}
    for line in lines[:MOST_LINES]:
        start, end = line
        through = max(start.column, end.column)
        turn = turns[through] = turns.get(through, 0) + 1
        x = starts[through] + rooms[through] - 12 - _LINES_APART * (turn - 0.5)
        out = start.right if start.column < end.column else start.left
        into = end.right if end.column < start.column else end.left
        yield path([_way(out, start.y, x, into, end.y)], "f")
        yield _arrow(into, end.y, 1 if into > x else -1)


def _way(out: float, y: float, x: float, into: float, to_y: float) -> str:
    """Along, up or down at `x`, and along, round at the corners."""
    if abs(to_y - y) < 1:
        return f"M{number(out)} {number(y)}H{number(into)}"
    bend = min(_ROUND, abs(to_y - y) / 2)
    down = bend if to_y > y else -bend
    first = bend if x > out else -bend
    last = bend if into > x else -bend
    return (
        f"M{number(out)} {number(y)}H{number(x - first)}Q{number(x)} {number(y)} {number(x)} {number(y + down)}"
        f"V{number(to_y - down)}Q{number(x)} {number(to_y)} {number(x + last)} {number(to_y)}H{number(into)}"
    )


def _arrow(x: float, y: float, way: int) -> str:
    back = number(-7 * way)
    return path([f"M{number(x)} {number(y)}l{back} -4v8z"], "u")
