"""Processes as frames: exporters on the left, who imports from them on the right, and lines from each to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memtopo.output.diagram import wording, zones
from memtopo.output.diagram.box import Box, Port, placed, rect, stacked, words
from memtopo.output.diagram.card import pad
from memtopo.output.diagram.flows import End, Line, channel, drawn
from memtopo.output.diagram.model import Diagram, HandleFlow, ProcessDiagram
from memtopo.output.diagram.pen import Pen
from memtopo.output.diagram.style import NAME
from memtopo.output.diagram.typeset import fitting

MOST = 12
_GAP = 20.0
_HEAD = 46.0


@dataclass(frozen=True, slots=True)
class _Column:
    """Frames below one another, from `x` on; `channel` is the room on their left for lines."""

    shown: Sequence[ProcessDiagram]
    channel: float = 0.0


def frames(picture: Diagram, room: float, pen: Pen) -> Box:
    """Every process of a picture with the flows between them, and the memory of all."""
    inside = [flow for flow in picture.flows if not flow.outside]
    columns = _columns(picture.processes[:MOST], inside, room)
    wide = (room - sum(column.channel for column in columns)) / len(columns)
    stacks = _stacks(columns, picture, wide, pen)
    starts = [sum(wide + each.channel for each in columns[:turn]) for turn in range(len(columns))]
    lefts = [start + column.channel for start, column in zip(starts, columns, strict=True)]
    ends = {
        port: End(left, left + wide, y, turn)
        for turn, (left, stack) in enumerate(zip(lefts, stacks, strict=True))
        for port, y in stack.ports.items()
    }
    lines = drawn(_lines(inside, ends), starts, [column.channel for column in columns])
    parts = [placed(stack, left, 0) for left, stack in zip(lefts, stacks, strict=True)]
    height = max(stack.height for stack in stacks)
    below: list[Box] = []
    memory = zones.memories(picture.memory, wide, pen, most=wide)
    if shorter := _room_for(memory, stacks):
        parts.append(placed(memory, lefts[shorter.column], shorter.y))
        height = max(height, shorter.y + memory.height)
    else:
        below.append(zones.memories(picture.memory, room, pen))
    if more := sum(each.count for each in picture.processes[MOST:]):
        below.insert(0, Box(room, 20, words(0, 14, f"… and {more:,} more processes", "w")))
    return stacked([Box(room, height, "".join([*parts, *lines])), *below], _GAP)


class _Free(NamedTuple):
    """Room below the frames of a column, from `y` on."""

    column: int
    y: float


def _room_for(memory: Box, stacks: Sequence[Box]) -> _Free | None:
    """Where memory stands beside frames rather than below all of them, if one column is that much shorter."""
    heights = [stack.height for stack in stacks]
    shortest = heights.index(min(heights))
    y = heights[shortest] + _GAP
    return _Free(shortest, y) if y + memory.height <= max(heights) + _GAP and len(stacks) > 1 else None


def _lines(flows: Sequence[HandleFlow], ends: Mapping[Port, End]) -> list[Line]:
    pairs = [(("out", flow.source, flow.export), ("in", flow.target, flow.name)) for flow in flows]
    return [Line(ends[start], ends[end]) for start, end in pairs if start in ends and end in ends]


def _stacks(columns: Sequence[_Column], picture: Diagram, wide: float, pen: Pen) -> list[Box]:
    """The frames of each column below one another; single ones beside one another are equally high."""
    stacks = [stacked([_frame(each, picture.flows, wide, 0, pen) for each in column.shown], _GAP) for column in columns]
    if any(len(column.shown) > 1 for column in columns):
        return stacks
    tall = max(stack.height for stack in stacks)
    return [_frame(column.shown[0], picture.flows, wide, tall, pen) for column in columns]


def _columns(processes: Sequence[ProcessDiagram], flows: Sequence[HandleFlow], room: float) -> list[_Column]:
    takers = {flow.target for flow in flows if flow.target != flow.source}
    givers = [each for each in processes if each.first not in takers]
    others = [each for each in processes if each.first in takers]
    if room < zones.NARROWEST * 2 + 100 or len(processes) == 1:
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
    content = zones.process(shown.picture, shown.first, flows, room, tall - _HEAD - 2 * edge, pen)
    kind = "PROCESS" if shown.count == 1 else f"{shown.count:,} PROCESSES"
    name = fitting(wording.processes(shown), room, NAME + 1.5)
    height = max(tall, _HEAD + content.height + 2 * edge)
    head = [rect(0, 0, wide, height, "b", 10), words(edge, edge + 10, kind, "c w"), words(edge, edge + 30, name, "n a")]
    top = edge + _HEAD
    ports = {port: top + y for port, y in content.ports.items()}
    return Box(wide, height, "".join([*head, placed(content, edge, top)]), ports)
