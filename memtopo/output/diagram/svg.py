"""A layout as one SVG: it needs no network, no script and no font of its own, and reads in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memtopo.output.diagram import layout, legend
from memtopo.output.diagram.context import Pen, Place, pen
from memtopo.output.diagram.description import told
from memtopo.output.diagram.markup import Box, number, stacked, text, words
from memtopo.output.diagram.model import Diagram
from memtopo.output.diagram.palette import DARK, LIGHT, TEXTURES, Scheme
from memtopo.output.diagram.typography import MONO_FONTS, NAME, SANS, SANS_FONTS, SMALL, TITLE, WORDS, fitting

WIDE = 960.0
_MARGIN, _GAP = 24.0, 16.0

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
    picture: Diagram,
    title: str,
    *,
    note: str = "",
    place: Place | None = None,
    addresses: Mapping[tuple[str, str], int] | None = None,
) -> str:
    """A picture as an SVG document, 960 pixels wide.

    `note` is said below the title. `place` tells where a path of the spec stands (`kv.yaml:14:3`), `addresses` where
    a range begins, by its name: both are shown where a pointer rests.
    """
    return drawing(picture, title, pen(picture, place, addresses, ""), WIDE, note=note, sheet=style(), head=True)


def drawing(picture: Diagram, title: str, pen: Pen, wide: float, *, note: str, sheet: str, head: bool) -> str:
    """An SVG element of a width; without `head` neither its title nor a ground is drawn, since a page has them."""
    margin = _MARGIN if head else 1.0
    room = wide - 2 * margin
    parts = [_title(title, note, room)] if head else []
    parts.append(layout.frames(picture, room, pen) if picture.processes else layout.alone(picture, room, pen))
    parts.append(legend.legend(picture, room, pen))
    content = stacked([part for part in parts if part.height], _GAP + 4)
    height = content.height + 2 * margin
    size = f"{number(wide)} {number(height)}"
    scale = f' width="{number(wide)}" height="{number(height)}"' if head else ""
    ground = (
        f'<rect class="b" x=".5" y=".5" width="{number(wide - 1)}" height="{number(height - 1)}" rx="10"/>'
        if head
        else ""
    )
    names = f"{pen.prefix}title", f"{pen.prefix}desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="m" viewBox="0 0 {size}"{scale} role="img"'
        f' aria-labelledby="{names[0]} {names[1]}">'
        f'<title id="{names[0]}">{text(title)}</title><desc id="{names[1]}">{text(told(picture))}</desc>'
        f"{f'<style>{sheet}</style>' if sheet else ''}<defs>{''.join(_textures(pen))}</defs>{ground}"
        f'<g transform="translate({number(margin)} {number(margin)})">{content.markup}</g></svg>\n'
    )


def _title(title: str, note: str, room: float) -> Box:
    parts = [words(0, 22, fitting(title, room, TITLE, SANS), "h")]
    if note:
        parts.append(words(0, 44, fitting(note, room, 13, SANS), "p w"))
    return Box(room, 50 if note else 28, "".join(parts))


def _textures(pen: Pen) -> Iterator[str]:
    used: Sequence[int] = sorted({pen.hue(device) for device in pen.devices} - {0})
    for hue in used:
        yield (
            f'<pattern id="{pen.prefix}t{hue}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<path class="d{hue}" d="M0 0h8v8H0z"/><path class="e{hue}" d="{TEXTURES[hue]}"/></pattern>'
        )


def style() -> str:
    """The style sheet of a drawing: shapes, the light colours, and the dark ones where a screen asks for them."""
    dark = "".join(_colours(DARK))
    return f"{_SHAPES.strip()}\n{''.join(_colours(LIGHT))}\n@media screen and (prefers-color-scheme:dark){{{dark}}}"


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
    for turn, hue in enumerate(scheme.hues):
        yield f".m .d{turn}{{fill:{hue.fill}}}.m .e{turn}{{stroke:{hue.edge};fill:none}}"
