"""The style that stands in every drawing: no file and no font is fetched, and each scheme has its colours."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.output.diagram.palette import DARK, LIGHT, Scheme

MONO_FONTS = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
SANS_FONTS = 'system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,"DejaVu Sans",sans-serif'

NAME, WORDS, SMALL, TITLE = 13.5, 12.0, 11.0, 22.0
"""Sizes of type, in pixels: a name, what is said of it, a caption, and the title of all."""

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
