"""Layouts as SVG documents that need no network, no script and no font of their own, in a light and a dark scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.output.diagram import layout
from memtopo.output.diagram.context import Addresses, DrawingContext, Locate, drawing_context
from memtopo.output.diagram.description import description
from memtopo.output.diagram.legend import legend
from memtopo.output.diagram.markup import Box, number, stacked, text, words
from memtopo.output.diagram.model import Diagram
from memtopo.output.diagram.palette import DARK, LIGHT, TEXTURES, Scheme
from memtopo.output.diagram.typography import MONO_FONTS, NAME, SANS, SANS_FONTS, SMALL, TITLE, WORDS, fitting

WIDTH = 960.0
_MARGIN, _GAP = 24.0, 20.0

_SHAPES = f"""
.m text{{font:{WORDS}px {MONO_FONTS};white-space:pre}}
.m .n{{font-size:{NAME}px;font-weight:600}}
.m .s{{font-size:{SMALL}px}}
.m .c{{font:600 {SMALL}px {SANS_FONTS};letter-spacing:.06em}}
.m .h{{font:600 {TITLE}px {SANS_FONTS}}}
.m .p{{font:13px {SANS_FONTS}}}
.m .a{{font-size:15px}}
.m .l,.m .f,.m .e{{fill:none}}
.m .f{{stroke-width:1.5}}
.m .i{{stroke-dasharray:3 3}}
.m .z{{opacity:.55}}
.m [class^=e]{{stroke-width:1.1}}
.m .g:hover .e{{stroke-width:2.5}}
"""


def svg(
    diagram: Diagram,
    title: str,
    *,
    note: str = "",
    locate: Locate | None = None,
    addresses: Addresses | None = None,
) -> str:
    """A diagram as an SVG document, 960 pixels wide.

    `note` is printed below the title. Tooltips contain the positions that `locate` gives for paths of the spec, and
    the `addresses` of ranges.
    """
    context = drawing_context(diagram, locate, addresses)
    content = _content(diagram, WIDTH - 2 * _MARGIN, context, [_heading(title, note, WIDTH - 2 * _MARGIN)])
    wide, tall = number(WIDTH), number(content.height + 2 * _MARGIN)
    edge = f'width="{number(WIDTH - 1)}" height="{number(content.height + 2 * _MARGIN - 1)}"'
    background = f'<rect class="b" x=".5" y=".5" {edge} rx="10"/>'
    parts = [f"<style>{style_sheet()}</style>", _textures(context), background, _shifted(content, _MARGIN)]
    return _element(diagram, title, context, f'viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}"', parts)


def figure(diagram: Diagram, title: str, wide: float, context: DrawingContext) -> str:
    """A diagram as an SVG element of a page, which has the title, the background and the style sheet."""
    margin = 1.0
    content = _content(diagram, wide - 2 * margin, context, [])
    box = f'viewBox="0 0 {number(wide)} {number(content.height + 2 * margin)}"'
    return _element(diagram, title, context, box, [_textures(context), _shifted(content, margin)])


def style_sheet() -> str:
    """The style sheet of a drawing: its shapes, the light colours, and the dark ones for screens that prefer them."""
    dark = "".join(_colours(DARK))
    return f"{_SHAPES.strip()}\n{''.join(_colours(LIGHT))}\n@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _content(diagram: Diagram, room: float, context: DrawingContext, head: Sequence[Box]) -> Box:
    draw = layout.multi_process if diagram.processes else layout.single_process
    parts = [*head, draw(diagram, room, context), legend(diagram, room, context)]
    return stacked([part for part in parts if part.height], _GAP)


def _element(diagram: Diagram, title: str, context: DrawingContext, size: str, parts: Sequence[str]) -> str:
    title_id, description_id = f"{context.prefix}title", f"{context.prefix}desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="m" {size} role="img"'
        f' aria-labelledby="{title_id} {description_id}">'
        f'<title id="{title_id}">{text(title)}</title>'
        f'<desc id="{description_id}">{text(description(diagram))}</desc>{"".join(parts)}</svg>\n'
    )


def _shifted(content: Box, margin: float) -> str:
    return f'<g transform="translate({number(margin)} {number(margin)})">{content.markup}</g>'


def _heading(title: str, note: str, room: float) -> Box:
    parts = [words(0, 22, fitting(title, room, TITLE, SANS), "h")]
    if note:
        parts.append(words(0, 44, fitting(note, room, 13, SANS), "p w"))
    return Box(room, 50 if note else 28, "".join(parts))


def _textures(context: DrawingContext) -> str:
    used = sorted({context.hue(device) for device in context.devices} - {0})
    patterns = (
        f'<pattern id="{context.prefix}t{hue}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path class="d{hue}" d="M0 0h8v8H0z"/><path class="e{hue}" d="{TEXTURES[hue]}"/></pattern>'
        for hue in used
    )
    return f"<defs>{''.join(patterns)}</defs>"


def _colours(scheme: Scheme) -> Iterator[str]:
    yield f".m text,.m .u{{fill:{scheme.ink}}}"
    yield f".m .w{{fill:{scheme.muted}}}"
    yield f".m .v{{fill:{scheme.card}}}"
    yield f".m .y{{fill:{scheme.line}}}"
    yield f".m .o{{fill:{scheme.hole};stroke:{scheme.edge}}}"
    yield f".m .k{{fill:{scheme.card};stroke:{scheme.line}}}"
    yield f".m .b{{fill:{scheme.paper};stroke:{scheme.line}}}"
    yield f".m .l{{stroke:{scheme.edge}}}"
    yield f".m .f,.m .e{{stroke:{scheme.ink}}}"
    yield f".m .d{{fill:{scheme.edge}}}"
    for index, hue in enumerate(scheme.hues):
        yield f".m .d{index}{{fill:{hue.fill}}}.m .e{index}{{stroke:{hue.edge};fill:none}}"
