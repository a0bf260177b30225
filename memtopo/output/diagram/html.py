"""A layout as one page: the drawing in the width that there is, and the same facts as tables. No script, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from memtopo.output.diagram.context import Pen, Place, pen
from memtopo.output.diagram.markup import text
from memtopo.output.diagram.model import Diagram
from memtopo.output.diagram.palette import DARK, LIGHT, Scheme
from memtopo.output.diagram.svg import drawing, style
from memtopo.output.diagram.tables import MOST_IN_ALL, MOST_TABLES, Table, count, tables
from memtopo.output.diagram.typography import MONO_FONTS, SANS_FONTS

WIDTHS = {"wide": 1120.0, "middle": 704.0, "narrow": 328.0}
"""The drawing is made in each of these widths, and the page shows the one that fits."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHAPES = f"""
*{{box-sizing:border-box}}
html{{color-scheme:light dark;-webkit-text-size-adjust:100%}}
body{{margin:0 auto;padding:32px 16px;max-width:1168px;font:15px/1.5 {SANS_FONTS}}}
h1{{font-size:26px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}}
h2{{font-size:18px;margin:40px 0 4px}}
p{{margin:0}}
figure{{margin:24px 0}}
figure svg{{display:block;width:100%;height:auto}}
.middle,.narrow{{display:none}}
.narrow{{max-width:480px;margin:0 auto}}
.tables{{display:grid;gap:28px;margin-top:16px}}
table{{border-collapse:collapse;width:100%;font:13px/1.45 {MONO_FONTS}}}
caption{{text-align:left;font:600 14px/1.4 {SANS_FONTS};padding-bottom:6px;overflow-wrap:anywhere}}
caption span{{font-weight:400}}
th,td{{text-align:left;vertical-align:top;padding:5px 16px 5px 0;border-bottom:1px solid}}
td{{overflow-wrap:anywhere;min-width:9ch}}
th,td[data-of=at],td[data-of=size],td[data-of=address]{{white-space:nowrap;min-width:0}}
th{{font:600 12px/1.4 {SANS_FONTS}}}
@media(max-width:1151.9px){{.wide{{display:none}}.middle{{display:block}}}}
@media screen and (max-width:719.9px){{
.middle{{display:none}}.narrow{{display:block}}
thead{{display:none}}tr,td{{display:block}}tr{{padding:8px 0;border-bottom:1px solid}}
td,td[data-of]{{white-space:normal;border:0;padding:1px 0 1px 88px;text-indent:-88px}}
td:empty{{display:none}}
td::before{{content:attr(data-of);display:inline-block;width:88px;text-indent:0;font:600 12px/1.4 {SANS_FONTS}}}
}}
@media print{{
body{{padding:0;max-width:none}}
.wide,.narrow{{display:none}}.middle{{display:block}}
tr{{break-inside:avoid}}h2{{break-after:avoid}}
}}
"""


def page(
    picture: Diagram,
    title: str,
    *,
    note: str = "",
    place: Place | None = None,
    addresses: Mapping[tuple[str, str], int] | None = None,
) -> str:
    """A picture as an HTML document; the parameters are those of `svg`."""
    used = pen(picture, place, addresses, "")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{text(title)}</title>'
        f"<style>{_sheet()}{style()}</style>"
    )
    said = f'<p class="soft">{text(note)}</p>' if note else ""
    drawn = "".join(_drawn(picture, title, used))
    told = "".join(_told(picture, used))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><header><h1>{text(title)}</h1>{said}</header>\n'
        f'<main><figure>{drawn}</figure>\n<h2>In words</h2><p class="soft">What the drawing shows, line by line.</p>'
        f'<div class="tables">{told}</div></main></body></html>\n'
    )


def _drawn(picture: Diagram, title: str, used: Pen) -> Iterator[str]:
    for kind, wide in WIDTHS.items():
        own = replace(used, prefix=f"{kind}-")
        yield f'<div class="{kind}">{drawing(picture, title, own, wide, note="", sheet="", head=False)}</div>'


def _told(picture: Diagram, used: Pen) -> Iterator[str]:
    shown, left = 0, MOST_IN_ALL
    for each in islice(tables(picture, used), MOST_TABLES):
        yield _table(each.cut(max(left, 1)))
        shown, left = shown + 1, left - len(each.rows)
    if shown == MOST_TABLES and (more := count(picture) - MOST_TABLES) > 0:
        yield f'<p class="soft">… and about {more:,} more tables</p>'


def _table(shown: Table) -> str:
    note = f' <span class="soft">{text(shown.note)}</span>' if shown.note else ""
    heads = "".join(f'<th scope="col">{text(column)}</th>' for column in shown.columns)
    body = "".join(_row(shown, row) for row in shown.rows)
    if shown.more:
        body += f'<tr><td class="soft" colspan="{len(shown.columns)}">… and {shown.more:,} more</td></tr>'
    caption = f"<caption>{text(shown.title)}{note}</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _row(shown: Table, row: tuple[str, ...]) -> str:
    cells = (f'<td data-of="{text(column)}">{text(word)}</td>' for column, word in zip(shown.columns, row, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _sheet() -> str:
    dark = "".join(_colours(DARK))
    return f"{_SHAPES}{''.join(_colours(LIGHT))}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def _colours(scheme: Scheme) -> Iterator[str]:
    yield f"body{{background:{scheme.paper};color:{scheme.ink}}}"
    yield f".soft,th,td::before{{color:{scheme.muted}}}"
    yield f"th,td,tr{{border-color:{scheme.line}}}"
