"""Layout of a drawing: frames of processes with their rows and ranges, memories, and lines from exports to imports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from memtopo.geometry.diagram import Diagram, HandleFlow, MemoryDiagram, ProcessDiagram
from memtopo.output.diagram import markup, notation
from memtopo.output.diagram.bar import Card, grid, padding
from memtopo.output.diagram.cards import earlier_spans, memory_card, range_card
from memtopo.output.diagram.markup import Box, Point, Port, number, path, placed, rect, stacked, text_at
from memtopo.output.diagram.notation import DrawingContext
from memtopo.output.diagram.rows import draw_rows

MOST_PROCESSES = 12
MOST_LINES = 24

_NARROWEST_CARD, _WIDEST_MEMORY = 288.0, 448.0
_CARD_GAP, _PART_GAP, _FRAME_GAP = 16.0, 12.0, 20.0
_MOST_MEMORIES_BESIDE = 4  # more memories are drawn below the ranges
_HIGHEST_STRETCHED_RANGE = 760.0
_FRAME_HEAD = 46.0
_LINE_GAP = 8.0
_CORNER = 8.0


def single_process(diagram: Diagram, room: float, context: DrawingContext) -> Box:
    """A layout of one process: ranges on the left and memory on the right, or below where there is less room."""
    memories = diagram.memory
    narrow = room < _NARROWEST_CARD * 2 + _CARD_GAP
    if not memories or not diagram.ranges or len(memories) > _MOST_MEMORIES_BESIDE or narrow:
        above = _ranges_and_rows(diagram, room, 0, context)
        return stacked([box for box in (above, _memories(memories, room, context)) if box.height], _CARD_GAP)
    cards = [memory_card(memory, context) for memory in memories]
    right = grid(cards, 1, _NARROWEST_CARD, _CARD_GAP)
    tall = min(right.height, _HIGHEST_STRETCHED_RANGE)
    left = _ranges_and_rows(diagram, room - _NARROWEST_CARD - _CARD_GAP, tall, context)
    if left.height > right.height and len(cards) == 1:
        right = grid(cards, 1, _NARROWEST_CARD, _CARD_GAP, left.height)
    return markup.beside([left, right], _CARD_GAP)


def _ranges_and_rows(diagram: Diagram, room: float, tall: float, context: DrawingContext) -> Box:
    rows = draw_rows(diagram, "", diagram.flows, room, context)
    rest = tall - sum(box.height + _PART_GAP for box in rows)
    return stacked([*_ranges(diagram, "", room, context, rest), *rows], _PART_GAP)


def _ranges(diagram: Diagram, process: str, room: float, context: DrawingContext, tall: float = 0) -> Iterator[Box]:
    ranges, left_out = diagram.ranges[: context.limits.ranges], diagram.ranges[context.limits.ranges :]
    pairs = zip(ranges, earlier_spans(ranges, context), strict=True)
    if cards := [range_card(range_, process, context, earlier) for range_, earlier in pairs]:
        yield _card_grid(cards, room, tall)
    if more := sum(range_.count for range_ in left_out):
        yield Box(room, 20, text_at(0, 14, f"… and {more:,} more ranges", "w"))


def _memories(memories: Sequence[MemoryDiagram], room: float, context: DrawingContext) -> Box:
    return _card_grid([memory_card(memory, context) for memory in memories], room, widest=_WIDEST_MEMORY)


def _card_grid(cards: Sequence[Card], room: float, tall: float = 0, widest: float = 1e9) -> Box:
    columns = max(1, min(len(cards), int((room + _CARD_GAP) // (_NARROWEST_CARD + _CARD_GAP))))
    return grid(cards, columns, min(widest, (room - _CARD_GAP * (columns - 1)) / columns), _CARD_GAP, tall)


def multi_process(diagram: Diagram, room: float, context: DrawingContext) -> Box:
    """Frames of processes, exporters on the left and importers on the right, and the memory of all processes."""
    flows = [flow for flow in diagram.flows if not flow.outside]
    columns = _columns(diagram.processes[:MOST_PROCESSES], flows, room)
    wide = (room - sum(channel for _, channel in columns)) / len(columns)
    parts: list[str] = []
    ends: dict[Port, Point] = {}
    left = height = 0.0
    for processes, channel in columns:
        stack = stacked([_frame(each, diagram.flows, wide, context) for each in processes], _FRAME_GAP)
        left += channel
        parts.append(placed(stack, left, 0))
        ends |= {port: (left, y) for port, y in stack.ports.items()}
        left, height = left + wide, max(height, stack.height)
    pairs = [(("export", flow.source, flow.export), ("import", flow.target, flow.name)) for flow in flows]
    lines = [(ends[start], ends[end]) for start, end in pairs if start in ends and end in ends]
    parts += _draw_lines(lines[:MOST_LINES], wide)
    more = sum(each.count for each in diagram.processes[MOST_PROCESSES:])
    hidden = {"processes": more, "lines from exports to imports": max(0, len(lines) - MOST_LINES)}
    notes = [f"… and {count:,} more {what}" for what, count in hidden.items() if count]
    below = (Box(room, 20, text_at(0, 14, note, "w")) for note in notes)
    return stacked([Box(room, height, "".join(parts)), *below, _memories(diagram.memory, room, context)], _FRAME_GAP)


def _columns(
    processes: Sequence[ProcessDiagram], flows: Sequence[HandleFlow], room: float
) -> list[tuple[Sequence[ProcessDiagram], float]]:
    """Processes below one another, with the width of a channel for lines on their left."""
    targets = {flow.target for flow in flows if flow.target != flow.source}
    left = [each for each in processes if each.first not in targets]
    right = [each for each in processes if each.first in targets]
    if room < _NARROWEST_CARD * 2 + 100 or len(processes) == 1:
        return [(processes, _channel(len(flows)))]
    if not left or not right:
        half = (len(processes) + 1) // 2
        left, right = list(processes[:half]), list(processes[half:])
    columns = {each.first: index for index, column in enumerate((left, right)) for each in column}
    inside = sum(columns.get(flow.source) == columns.get(flow.target) == 0 for flow in flows)
    return [(left, _channel(inside)), (right, _channel(len(flows) - inside) + 16)]


def _channel(lines: int) -> float:
    """Width of a channel for parallel lines."""
    return 16 + _LINE_GAP * min(lines, MOST_LINES) if lines else 0.0


def _frame(process: ProcessDiagram, flows: Sequence[HandleFlow], wide: float, context: DrawingContext) -> Box:
    edge = padding(wide)
    room, top = wide - 2 * edge, edge + _FRAME_HEAD
    # Rows above ranges, so that lines between processes are short.
    rows = draw_rows(process.picture, process.first, flows, room, context)
    content = stacked([*rows, *_ranges(process.picture, process.first, room, context)], _PART_GAP)
    kind = "PROCESS" if process.count == 1 else f"{process.count:,} PROCESSES"
    name = markup.fitting(notation.title(process), room, markup.NAME + 1.5)
    height = _FRAME_HEAD + content.height + 2 * edge
    head = rect(0, 0, wide, height, "b", 10) + text_at(edge, edge + 10, kind, "c w")
    head += text_at(edge, edge + 30, name, "n a")
    return Box(wide, height, head + placed(content, edge, top), {port: top + y for port, y in content.ports.items()})


def _draw_lines(lines: Sequence[tuple[Point, Point]], wide: float) -> Iterator[str]:
    """Lines between frames, given by their left edges, through the channels of columns, and never through a frame."""
    used = Counter[float]()
    for (left, y), (to_left, to_y) in lines:
        column = max(left, to_left)
        used[column] += 1
        x = column - 12 - _LINE_GAP * (used[column] - 0.5)
        from_x = left + wide if left < to_left else left
        to_x = to_left + wide if to_left < left else to_left
        yield path([_line(from_x, y, x, to_x, to_y)], "f")
        yield path([f"M{number(to_x)} {number(to_y)}l{-7 if to_x > x else 7} -4v8z"], "u")


def _line(from_x: float, from_y: float, x: float, to_x: float, to_y: float) -> str:
    """A horizontal line to `x`, a vertical one, and a horizontal one, with round corners."""
    if abs(to_y - from_y) < 1:
        return f"M{number(from_x)} {number(from_y)}H{number(to_x)}"
    bend = min(_CORNER, abs(to_y - from_y) / 2)
    down = bend if to_y > from_y else -bend
    first = bend if x > from_x else -bend
    last = bend if to_x > x else -bend
    return (
        f"M{number(from_x)} {number(from_y)}H{number(x - first)}"
        f"Q{number(x)} {number(from_y)} {number(x)} {number(from_y + down)}V{number(to_y - down)}"
        f"Q{number(x)} {number(to_y)} {number(x + last)} {number(to_y)}H{number(to_x)}"
    )
