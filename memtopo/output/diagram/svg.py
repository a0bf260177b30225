"""Drawings as SVG documents that need no network, no script and no font of their own, in a light and a dark scheme.

Frames of processes with their rows and ranges, memories, and lines from exports to imports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template

from memtopo.geometry.diagram import Diagram, HandleFlow, MemoryDiagram, ProcessDiagram, RangeDiagram
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import markup, notation
from memtopo.output.diagram.bar import Card, badge, grid, padding
from memtopo.output.diagram.cards import draw_rows, memory_card, range_cards
from memtopo.output.diagram.markup import BODY, Box, Point, fitting, number, path, placed, rect, stacked, text, text_at
from memtopo.output.diagram.notation import DARK, LIGHT, SEVERAL, DrawingContext, Scheme, drawing_context
from memtopo.output.diagram.tables import description

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
    rows = draw_rows(diagram, "", room, context)
    rest = tall - sum(box.height + _PART_GAP for box in rows)
    return stacked([*_ranges(diagram, "", room, context, rest), *rows], _PART_GAP)


def _ranges(diagram: Diagram, process: str, room: float, context: DrawingContext, tall: float = 0) -> Iterator[Box]:
    ranges, left_out = diagram.ranges[: context.limits.ranges], diagram.ranges[context.limits.ranges :]
    if cards := [*range_cards(ranges, process, context)]:
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
    ends: dict[markup.Port, Point] = {}
    left = height = 0.0
    for processes, channel in columns:
        stack = stacked([_frame(each, wide, context) for each in processes], _FRAME_GAP)
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


def _frame(process: ProcessDiagram, wide: float, context: DrawingContext) -> Box:
    edge = padding(wide)
    room, top = wide - 2 * edge, edge + _FRAME_HEAD
    # Rows above ranges, so that lines between processes are short.
    rows = draw_rows(process.picture, process.first, room, context)
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


WIDTH = 960.0
_MARGIN, _GAP = 24.0, 20.0


def svg(drawing: Drawing) -> str:
    """A drawing as an SVG document, 960 pixels wide, with its note below the title.

    Tooltips contain the positions of the entries in the spec, and the addresses of ranges, as far as they are known.
    """
    diagram, title = drawing.diagram, drawing.title
    context = drawing_context(drawing)
    room = WIDTH - 2 * _MARGIN
    heading = text_at(0, 22, fitting(title, room, markup.TITLE, markup.SANS), "h")
    if drawing.note:
        heading += text_at(0, 44, fitting(drawing.note, room, 13, markup.SANS), "p w")
    content = _content(diagram, room, context, [Box(room, 50 if drawing.note else 28, heading)])
    wide, tall = number(WIDTH), number(content.height + 2 * _MARGIN)
    edge = f'width="{number(WIDTH - 1)}" height="{number(content.height + 2 * _MARGIN - 1)}"'
    background = f'<rect class="b" x=".5" y=".5" {edge} rx="10"/>'
    parts = [f"<style>{style_sheet()}</style>", _textures(context), background, placed(content, _MARGIN, _MARGIN)]
    return _element(diagram, title, context, f'viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}"', parts)


def figure(diagram: Diagram, title: str, wide: float, context: DrawingContext) -> str:
    """A diagram as an SVG element of a page, which has the title, the background and the style sheet."""
    margin = 1.0
    content = _content(diagram, wide - 2 * margin, context, [])
    box = f'viewBox="0 0 {number(wide)} {number(content.height + 2 * margin)}"'
    return _element(diagram, title, context, box, [_textures(context), placed(content, margin, margin)])


def style_sheet() -> str:
    """The style sheet of a drawing: its shapes, the light colours, and the dark ones for screens that prefer them."""
    sizes = {"body": BODY, "name": markup.NAME, "small": markup.SMALL, "title": markup.TITLE}
    shapes = Template((Path(__file__).parent / "drawing.css").read_text().strip())
    found = shapes.substitute(sizes, mono=markup.MONO_FONTS, sans=markup.SANS_FONTS)
    return f"{found}\n{_colours(LIGHT)}\n@media screen and (prefers-color-scheme:dark){{{_colours(DARK)}}}"


def _content(diagram: Diagram, room: float, context: DrawingContext, head: Sequence[Box]) -> Box:
    draw = multi_process if diagram.processes else single_process
    lines = [line for choice in diagram.choices for line in markup.packed([choice], room, BODY)]
    texts = (text_at(0, 15 + index * _LEGEND_LINE, line, "w") for index, line in enumerate(lines))
    choices = Box(room, len(lines) * _LEGEND_LINE, "".join(texts))
    parts = [*head, draw(diagram, room, context), choices, legend(diagram, room, context)]
    return stacked([part for part in parts if part.height], _GAP)


def _element(diagram: Diagram, title: str, context: DrawingContext, size: str, parts: Sequence[str]) -> str:
    title_id, description_id = f"{context.prefix}title", f"{context.prefix}desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="m" {size} role="img"'
        f' aria-labelledby="{title_id} {description_id}">'
        f'<title id="{title_id}">{text(title)}</title>'
        f'<desc id="{description_id}">{text(description(diagram, context))}</desc>{"".join(parts)}</svg>\n'
    )


def _textures(context: DrawingContext) -> str:
    used = sorted({context.hue(device) for device in context.devices} - {0})
    patterns = (
        f'<pattern id="{context.prefix}t{hue}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="d{hue}" d="M0 0h8v8H0z"/><path class="e{hue}" d="{notation.TEXTURES[hue]}"/></pattern>'
        for hue in used
    )
    return f"<defs>{''.join(patterns)}</defs>"


_COLOURS = (
    ".m text,.m .u{{fill:{0.ink}}}.m .w{{fill:{0.muted}}}.m .v{{fill:{0.card}}}.m .y{{fill:{0.line}}}"
    ".m .o{{fill:{0.hole};stroke:{0.edge}}}.m .k{{fill:{0.card};stroke:{0.line}}}"
    ".m .b{{fill:{0.paper};stroke:{0.line}}}.m .l{{stroke:{0.edge}}}.m .f,.m .e{{stroke:{0.ink}}}.m .d{{fill:{0.edge}}}"
)


def _colours(scheme: Scheme) -> str:
    hues = (f".m .d{n}{{fill:{hue.fill}}}.m .e{n}{{stroke:{hue.edge};fill:none}}" for n, hue in enumerate(scheme.hues))
    return _COLOURS.format(scheme) + "".join(hues)


_LEGEND_KEY, _LEGEND_GAP, _LEGEND_LINE = 28.0, 24.0, 24.0


def legend(diagram: Diagram, room: float, context: DrawingContext) -> Box:
    """Symbols and their meanings, in as many lines as they need."""
    parts, x, y = [], 0.0, 0.0
    for symbol, meaning in _entries(diagram, context):
        shown = fitting(meaning, room - _LEGEND_KEY, BODY)
        wide = _LEGEND_KEY + markup.width(shown, BODY)
        if x and x + wide > room:
            x, y = 0.0, y + _LEGEND_LINE
        words = text_at(_LEGEND_KEY, 15, shown, "w")
        parts.append(f'<g transform="translate({number(x)} {number(y)})">{symbol}{words}</g>')
        x += wide + _LEGEND_GAP
    return Box(room, y + _LEGEND_LINE if parts else 0, "".join(parts))


def _entries(diagram: Diagram, context: DrawingContext) -> Iterator[tuple[str, str]]:
    """Markup of each symbol, and its meaning."""
    pictures = (*diagram.pictures, diagram)
    ranges = [range_ for picture in pictures for range_ in picture.ranges]
    things = [thing for picture in pictures for thing in picture.things]
    spans = [span for range_ in ranges for span in range_.pieces]
    used = {name for each in things if each.parts for name in each.locations[:1]}
    used |= {memory.device for memory in diagram.memory} | {name for span in spans for name in span.locations}
    for device in context.devices:
        if device in used:
            filled = markup.element("path", {"d": "M0 2h20v16H0z", **context.fill(device)})
            yield filled + rect(0, 2, 20, 16, "e"), f"on {context.device_name(device)}"
    access = {each.access for span in spans for each in span.access}
    if "rw" in access:
        yield rect(0, 2, 20, 16, "w", 4) + text_at(10, 14, "rw", "s v", anchor="middle"), "may read and write"
    if "r" in access:
        yield rect(0, 2, 20, 16, "o", 4) + text_at(10, 14, "r", "s", anchor="middle"), "may read"
    if any(not span.chunk for span in spans):
        yield rect(0, 2, 20, 16, "o i"), "hole, no memory"
    if any(span.chunk for span in spans) or any(thing.mark for thing in things):
        yield "".join(badge("a", 10, 10)), "same letter, same entry of the spec"
    marks = {span.chunk for span in spans if span.chunk}
    marks |= {share.chunk for memory in diagram.memory for share in memory.shares}
    if any(_folded(range_, context) for range_ in ranges) or len(marks) > len(context.letters):
        yield "".join(badge(SEVERAL, 10, 10)), "several, or one of many"
    if any(_mapped_twice(range_, context) for range_ in ranges):
        ends = markup.dot(16, 4, "u", 2.5) + markup.dot(16, 16, "u", 2.5)
        yield markup.curve((16, 4), (16, 16), 0, "f") + ends, "mapped again"
    if any(not flow.outside for flow in diagram.flows):
        yield markup.path(["M0 10H14"], "f") + markup.path(["M21 10l-7 -4v8z"], "u"), "handles go from export to import"


def _folded(range_: RangeDiagram, context: DrawingContext) -> bool:
    """True if some spans of a range share a block."""
    return len(range_.pieces) > context.limits.blocks


def _mapped_twice(range_: RangeDiagram, context: DrawingContext) -> bool:
    """True if two blocks of a bar show the same memory."""
    drawn, here = notation.DrawnSpans(), notation.SpanPosition(range_.first, 0, 0)
    return not _folded(range_, context) and any(drawn.add(span, 1, here) for span in range_.pieces)
