"""Layouts as HTML pages without script and network: the drawing in several widths, and its content as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from memtopo.geometry.diagram import Diagram
from memtopo.output.diagram.context import DARK, LIGHT, Addresses, DrawingContext, Locate, Scheme, drawing_context
from memtopo.output.diagram.markup import MONO_FONTS, SANS_FONTS, text
from memtopo.output.diagram.svg import figure, style_sheet
from memtopo.output.diagram.tables import MOST_ROWS, MOST_TABLES, Table, table_count, tables

WIDTHS = {"wide": 1120.0, "middle": 704.0, "narrow": 328.0}
"""Widths of the drawing in pixels; a page contains it in each of them and shows the one that fits."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FIGURE_STYLE = """
figure{margin:24px 0}
figure svg{display:block;width:100%;height:auto}
.middle,.narrow{display:none}
.narrow{max-width:480px;margin:0 auto}
@media(max-width:1151.9px){.wide{display:none}.middle{display:block}}
@media screen and (max-width:719.9px){.middle{display:none}.narrow{display:block}}
@media print{.wide,.narrow{display:none}.middle{display:block}}
"""
"""Style of the figures of a page that is as wide as one of a drawing."""

TABLE_STYLE = f"""
table{{border-collapse:collapse;width:100%;font:13px/1.45 {MONO_FONTS}}}
caption{{text-align:left;font:600 14px/1.4 {SANS_FONTS};padding-bottom:6px;overflow-wrap:anywhere}}
caption span{{font-weight:400}}
th,td{{text-align:left;vertical-align:top;padding:5px 16px 5px 0;border-bottom:1px solid}}
td{{overflow-wrap:anywhere;min-width:9ch}}
th,td[data-of=at],td[data-of=size],td[data-of=address]{{white-space:nowrap;min-width:0}}
th{{font:600 12px/1.4 {SANS_FONTS}}}
@media screen and (max-width:719.9px){{
thead{{display:none}}tr,td{{display:block}}tr{{padding:8px 0;border-bottom:1px solid}}
td,td[data-of]{{white-space:normal;border:0;padding:1px 0 1px 88px;text-indent:-88px}}
td:empty{{display:none}}
td::before{{content:attr(data-of);display:inline-block;width:88px;text-indent:0;font:600 12px/1.4 {SANS_FONTS}}}
}}
"""
"""Style of tables, whose rows become blocks on a narrow screen."""

_SHAPES = f"""
*{{box-sizing:border-box}}
html{{color-scheme:light dark;-webkit-text-size-adjust:100%}}
body{{margin:0 auto;padding:32px 16px;max-width:1168px;font:15px/1.5 {SANS_FONTS}}}
h1{{font-size:26px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}}
h2{{font-size:18px;margin:40px 0 4px}}
p{{margin:0}}
.tables{{display:grid;gap:28px;margin-top:16px}}
@media print{{
body{{padding:0;max-width:none}}
tr{{break-inside:avoid}}h2{{break-after:avoid}}
}}
"""


def page(
    diagram: Diagram,
    title: str,
    *,
    note: str = "",
    locate: Locate | None = None,
    addresses: Addresses | None = None,
) -> str:
    """A diagram as an HTML document; the parameters are those of `svg`."""
    context = drawing_context(diagram, locate, addresses)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{text(title)}</title>'
        f"<style>{_page_style()}{style_sheet()}</style>"
    )
    subtitle = f'<p class="soft">{text(note)}</p>' if note else ""
    drawing = "".join(_figures(diagram, title, context))
    content = "".join(_tables(diagram, context))
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><header><h1>{text(title)}</h1>{subtitle}</header>\n"
        f'<main><figure>{drawing}</figure>\n<h2>In words</h2><p class="soft">What the drawing shows, line by line.</p>'
        f'<div class="tables">{content}</div></main></body></html>\n'
    )


def figures(diagram: Diagram, title: str, *, locate: Locate | None = None, addresses: Addresses | None = None) -> str:
    """A diagram in each of the widths, for a page with `FIGURE_STYLE` and the style sheet of a drawing."""
    return "".join(_figures(diagram, title, drawing_context(diagram, locate, addresses)))


def _figures(diagram: Diagram, title: str, context: DrawingContext) -> Iterator[str]:
    for kind, wide in WIDTHS.items():
        yield f'<div class="{kind}">{figure(diagram, title, wide, replace(context, prefix=f"{kind}-"))}</div>'


def _tables(diagram: Diagram, context: DrawingContext) -> Iterator[str]:
    shown, rows = 0, MOST_ROWS
    for table in islice(tables(diagram, context), MOST_TABLES):
        yield _table(table.cut(max(rows, 1)))
        shown, rows = shown + 1, rows - len(table.rows)
    if shown == MOST_TABLES and (more := table_count(diagram) - MOST_TABLES) > 0:
        yield f'<p class="soft">… and about {more:,} more tables</p>'


def _table(table: Table) -> str:
    note = f' <span class="soft">{text(table.note)}</span>' if table.note else ""
    heads = "".join(f'<th scope="col">{text(column)}</th>' for column in table.columns)
    body = "".join(_row(table, row) for row in table.rows)
    if table.more:
        body += f'<tr><td class="soft" colspan="{len(table.columns)}">… and {table.more:,} more</td></tr>'
    caption = f"<caption>{text(table.title)}{note}</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _row(table: Table, row: tuple[str, ...]) -> str:
    cells = (f'<td data-of="{text(column)}">{text(word)}</td>' for column, word in zip(table.columns, row, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _page_style() -> str:
    dark = "".join(_colours(DARK))
    shapes = f"{_SHAPES}{FIGURE_STYLE}{TABLE_STYLE}"
    return f"{shapes}{''.join(_colours(LIGHT))}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def _colours(scheme: Scheme) -> Iterator[str]:
    yield f"body{{background:{scheme.paper};color:{scheme.ink}}}"
    yield f".soft,th,td::before{{color:{scheme.muted}}}"
    yield f"th,td,tr{{border-color:{scheme.line}}}"
