"""Layouts as SVG documents that need no network, no script and no font of their own, in a light and a dark scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.geometry.diagram import Diagram, MappingSpan, RangeDiagram
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import layout, markup, notation
from memtopo.output.diagram.bar import badge
from memtopo.output.diagram.markup import BODY, SMALL, TITLE, Box, fitting, number, placed, rect, stacked, text, text_at
from memtopo.output.diagram.notation import DARK, LIGHT, SEVERAL, DrawingContext, Scheme, drawing_context
from memtopo.output.diagram.tables import description

WIDTH = 960.0
_MARGIN, _GAP = 24.0, 20.0

_SHAPES = f"""
.m text{{font:{BODY}px {markup.MONO_FONTS};white-space:pre}}
.m .n{{font-size:{markup.NAME}px;font-weight:600}}
.m .s{{font-size:{SMALL}px}}
.m .c{{font:600 {SMALL}px {markup.SANS_FONTS};letter-spacing:.06em}}
.m .h{{font:600 {TITLE}px {markup.SANS_FONTS}}}
.m .p{{font:13px {markup.SANS_FONTS}}}
.m .a{{font-size:15px}}
.m .l,.m .f,.m .e{{fill:none}}
.m .f{{stroke-width:1.5}}
.m .i{{stroke-dasharray:3 3}}
.m .z{{opacity:.55}}
.m [class^=e]{{stroke-width:1.1}}
.m .g:hover .e{{stroke-width:2.5}}
"""


def svg(drawing: Drawing) -> str:
    """A drawing as an SVG document, 960 pixels wide, with its note below the title.

    Tooltips contain the positions of the entries in the spec, and the addresses of ranges, as far as they are known.
    """
    diagram, title = drawing.diagram, drawing.title
    context = drawing_context(diagram, drawing.locate, drawing.addresses)
    content = _content(diagram, WIDTH - 2 * _MARGIN, context, [_heading(title, drawing.note, WIDTH - 2 * _MARGIN)])
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
    return f"{_SHAPES.strip()}\n{_colours(LIGHT)}\n@media screen and (prefers-color-scheme:dark){{{_colours(DARK)}}}"


def _content(diagram: Diagram, room: float, context: DrawingContext, head: Sequence[Box]) -> Box:
    draw = layout.multi_process if diagram.processes else layout.single_process
    parts = [*head, draw(diagram, room, context), _choices(diagram, room), legend(diagram, room, context)]
    return stacked([part for part in parts if part.height], _GAP)


def _element(diagram: Diagram, title: str, context: DrawingContext, size: str, parts: Sequence[str]) -> str:
    title_id, description_id = f"{context.prefix}title", f"{context.prefix}desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="m" {size} role="img"'
        f' aria-labelledby="{title_id} {description_id}">'
        f'<title id="{title_id}">{text(title)}</title>'
        f'<desc id="{description_id}">{text(description(diagram, context))}</desc>{"".join(parts)}</svg>\n'
    )


def _heading(title: str, note: str, room: float) -> Box:
    parts = [text_at(0, 22, fitting(title, room, TITLE, markup.SANS), "h")]
    if note:
        parts.append(text_at(0, 44, fitting(note, room, 13, markup.SANS), "p w"))
    return Box(room, 50 if note else 28, "".join(parts))


def _choices(diagram: Diagram, room: float) -> Box:
    """Lines of the choices among alternatives, each broken at its spaces."""
    lines = [line for choice in diagram.choices for line in markup.packed([choice], room, BODY)]
    texts = (text_at(0, 15 + index * _LEGEND_LINE, line, "w") for index, line in enumerate(lines))
    return Box(room, len(lines) * _LEGEND_LINE, "".join(texts))


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

_Entry = tuple[str, str]
"""The markup of a symbol, and its meaning."""


def legend(diagram: Diagram, room: float, context: DrawingContext) -> Box:
    """Symbols and their meanings, in as many lines as they need."""
    parts, x, y = [], 0.0, 0.0
    for symbol, meaning in _entries(diagram, context):
        shown = fitting(meaning, room - _LEGEND_KEY, BODY)
        wide = _LEGEND_KEY + markup.width(shown, BODY)
        if x and x + wide > room:
            x, y = 0.0, y + _LEGEND_LINE
        parts.append(
            f'<g transform="translate({number(x)} {number(y)})">{symbol}{text_at(_LEGEND_KEY, 15, shown, "w")}</g>'
        )
        x += wide + _LEGEND_GAP
    return Box(room, y + _LEGEND_LINE if parts else 0, "".join(parts))


def _entries(diagram: Diagram, context: DrawingContext) -> Iterator[_Entry]:
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
    yield from _access_entries(spans)
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


def _access_entries(spans: Sequence[MappingSpan]) -> Iterator[_Entry]:
    access = {each.access for span in spans for each in span.access}
    if "rw" in access:
        yield rect(0, 2, 20, 16, "w", 4) + text_at(10, 14, "rw", "s v", anchor="middle"), "may read and write"
    if "r" in access:
        yield rect(0, 2, 20, 16, "o", 4) + text_at(10, 14, "r", "s", anchor="middle"), "may read"


def _folded(range_: RangeDiagram, context: DrawingContext) -> bool:
    """True if some spans of a range share a block."""
    return len(range_.pieces) > context.limits.blocks


def _mapped_twice(range_: RangeDiagram, context: DrawingContext) -> bool:
    """True if two blocks of a bar show the same memory."""
    drawn, here = notation.DrawnSpans(), notation.SpanPosition(range_.first, 0, 0)
    return not _folded(range_, context) and any(drawn.add(span, 1, here) for span in range_.pieces)
