"""Pages as HTML documents of bounded size, without script and network. Every text in them is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any, TypeVar

from msgspec.structs import replace

from memtopo.common import __version__
from memtopo.common.units import rounded
from memtopo.output import blocks
from memtopo.output.blocks import HEAT, Block, Cell, Column, Drawing, Page, Section, Stacked, Table, Toned, Track
from memtopo.output.diagram import svg
from memtopo.output.diagram.markup import MONO_FONTS, SANS_FONTS, text
from memtopo.output.diagram.notation import DARK, HUES, LIGHT, Scheme, drawing_context
from memtopo.output.humanize import duration

T = TypeVar("T")

WIDTHS = {"wide": 1120.0, "middle": 704.0, "narrow": 328.0}
"""Widths of a drawing in pixels; a page contains it in each of them and shows the one that fits."""
MOST_ROWS, MOST_TABLE_ROWS = 1500, 200
"""Rows of all tables of a page, and of one of them."""
MOST_BLOCKS, MOST_NOTES, MOST_LINES = 200, 100, 3000
"""Blocks of a section, notes, and lines of a source."""
MOST_ITEM_LINES = 11

_TONES = {"good": ("#00573f", "#6fdab6"), "bad": ("#a3212a", "#ff9b95"), "warn": ("#7f5200", "#ffcc66")}
"""Colours of words for success, failure and interruption, in the light and in the dark scheme."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SCALE = (
    '<ul class="keys"><li>none</li><li class="scale">'
    + "".join(f'<i style="background:{fill}"></i>' for fill, _ in HEAT)
    + "</li><li>the most in its matrix</li></ul>"
)


def document(page: Page) -> str:
    """A page as a document."""
    drawn = any(isinstance(block, Drawing) for section in page.sections for block in section.blocks)
    head = (
        f'<meta name="generator" content="memtopo{" draw" if page.command == "draw" else ""}">'
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{text(page.title)}</title>'
        f"<style>{_style_sheet()}{svg.style_sheet() if drawn else ''}</style>"
    )
    soft = "".join(f'<p class="soft">{text(fact)}</p>' for fact in (page.where, *page.facts) if fact)
    heading = f'<p class="kicker">memtopo {text(page.command)}</p><h1>{text(page.title)}</h1>{soft}'
    verdict = f'<p class="verdict {page.verdict.tone}">{text(page.verdict.text)}</p>' if page.verdict else ""
    body = _Body(page.title)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><header>{heading}</header>\n'
        f"<main>{verdict}{''.join(map(body.section, page.sections))}</main>"
        f'<footer class="soft">memtopo {text(__version__)}</footer></body></html>\n'
    )


class _Body:
    """Markup of the sections of a page, in their order."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rows = MOST_ROWS

    def section(self, section: Section) -> str:
        title = text(section.title[:1].upper() + section.title[1:])
        heading = f"<h2{_classes(section.tone)}>{title}</h2>" if title else ""
        shown = _cut(section.blocks, MOST_BLOCKS)
        scale = _SCALE if any(isinstance(block, Table) and block.heat for block in shown) else ""
        groups = groupby(
            shown, key=lambda block: isinstance(block, Table) and ("matrices" if block.close else "tables")
        )
        content = "".join(_contained(kind or "", "".join(map(self._block, group))) for kind, group in groups)
        return f"<section>{heading}{scale}{content}</section>\n"

    def _block(self, block: Block) -> str:
        if isinstance(block, Table):
            most = max(0, min(self._rows, MOST_TABLE_ROWS))
            self._rows -= len(block.rows)
            return _table(block.cut(most))
        if isinstance(block, Drawing):
            return f"<figure>{''.join(_figures(block, self._title))}</figure>"
        return _MARKUP[type(block)](block)


def _paragraph(words: str, tone: str = "") -> str:
    return f"<p{_classes(tone)}>{text(words.strip())}</p>"


def _definitions(pairs: blocks.Pairs) -> str:
    return f"<dl>{''.join(f'<dt>{text(name)}</dt><dd>{text(each.strip())}</dd>' for name, each in pairs.rows)}</dl>"


def _source(source: blocks.Source) -> str:
    shown = "\n".join(map(text, _cut(source.lines, MOST_LINES)))
    return f"<pre>{shown}</pre>" if shown else ""


def _keys(legend: blocks.Legend) -> str:
    keys = (f'<li><i style="background:var(--hue{hue})"></i>{text(name)}</li>' for name, hue in legend.hues.items())
    return f'<ul class="keys">{"".join(keys)}</ul>'


_CHART = (600, 90)
"""Width and height of a timeline in units of its drawing."""


def _timeline(timeline: blocks.Timeline) -> str:
    """Lines of bytes over time, one drawing for all series, and their keys."""
    width, height = _CHART
    lines = []
    for hue, (_, points) in enumerate(timeline.series):
        levels = timeline.levels(points, width)
        path = " ".join(f"{x},{height - level * height / (timeline.most or 1):.1f}" for x, level in enumerate(levels))
        lines.append(f'<polyline points="{path}" fill="none" stroke="var(--edge{hue % HUES})" stroke-width="1.5"/>')
    names = [f"{each.name}, at most {rounded(each.most)}" for each in timeline.series]
    keys = blocks.Legend({name: hue % HUES for hue, name in enumerate(names)})
    words = f"memory over {duration(timeline.seconds)}"
    box = f'viewBox="0 -2 {width} {height + 4}" role="img" aria-label="{text(words)}" width="100%"'
    return f"<figure><svg {box}>{''.join(lines)}</svg>{_keys(keys)}</figure>"


def _cut(lines: Sequence[T], most: int) -> list[T | str]:
    """The first lines, and the number of the others."""
    return [*lines[:most], *([f"… and {len(lines) - most:,} more"] if len(lines) > most else [])]


def _contained(kind: str, content: str) -> str:
    return f'<div class="{kind}">{content}</div>' if kind and content else content


def _listed(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>"


def _figures(shown: Drawing, title: str) -> Iterator[str]:
    context = drawing_context(shown)
    for kind, wide in WIDTHS.items():
        drawn = svg.figure(shown.diagram, title, wide, replace(context, prefix=f"{kind}-"))
        yield f'<div class="{kind}">{drawn}</div>'


def _table(given: Table) -> str:
    shown = given.filled()
    heads = "".join(f'<th scope="col"{_kind(column)}>{text(column.heading)}</th>' for column in shown.columns)
    body = "".join(f"<tr>{''.join(_row(shown, index))}</tr>" for index in range(len(shown.rows)))
    if shown.more:
        body += f'<tr><td class="soft" colspan="{max(1, len(shown.columns))}">… and {shown.more:,} more</td></tr>'
    note = f' <span class="soft">{text(shown.note)}</span>' if shown.note else ""
    caption = f"<caption>{text(shown.caption)}{note}</caption>" if shown.caption else ""
    made = f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return _contained("heat" if shown.close else "", made)


def _row(shown: Table, index: int) -> Iterator[str]:
    row, heat = shown.rows[index], shown.heat[index] if shown.heat else ()
    below = f'<div class="soft">{text(shown.below[index])}</div>' if shown.below and shown.below[index] else ""
    for number, (column, cell) in enumerate(zip(shown.columns, row, strict=True)):
        share = heat[number - 1] if heat and number else None
        level = "" if share is None else f"h{max(0, min(int(share * len(HEAT)), len(HEAT) - 1))}"
        kind = _kind(column, "fill" if isinstance(cell, Track) else level)
        yield f'<td data-of="{text(column.heading)}"{kind}>{_cell(cell)}{below if number == 0 else ""}</td>'


def _kind(column: Column, *more: str) -> str:
    return _classes(*more, "number" if column.align == "right" else "")


def _classes(*names: str) -> str:
    found = " ".join(filter(None, names))
    return f' class="{found}"' if found else ""


def _cell(cell: Cell) -> str:
    match cell:
        case Toned(words, tone):
            return f'<span class="{tone}">{text(words)}</span>' if words and tone else text(words)
        case Stacked(lines):
            return "<br>".join(map(text, lines))
        case Track(spans):
            return f'<div class="track">{"".join(map(_span, spans))}</div>'
    return text(cell)


def _span(span: blocks.TimeSpan) -> str:
    place = f"left:{span.start:.2%};width:{span.length:.2%}"
    colours = f"background:var(--hue{span.hue});box-shadow:inset 0 0 0 1px var(--edge{span.hue})"
    return f'<i title="{text(span.words)}" style="{place};{colours}"></i>'


def _style_sheet() -> str:
    """The style sheet of a page, apart from that of a drawing in it."""
    fonts = f"--sans:{SANS_FONTS};--mono:{MONO_FONTS};"
    light, dark = f":root{{{fonts}{_variables(LIGHT, 0)}}}", f":root{{{_variables(DARK, 1)}}}"
    heat = "".join(f".heat td.h{n}{{background:{fill};color:{ink}}}" for n, (fill, ink) in enumerate(HEAT))
    shapes = resources.files("memtopo.output").joinpath("page.css").read_text()
    return f"{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n{shapes}{heat}"


def _variables(scheme: Scheme, index: int) -> str:
    found = {name: getattr(scheme, name) for name in ("paper", "card", "line", "ink", "muted")}
    found |= {name: tones[index] for name, tones in _TONES.items()}
    for n, hue in enumerate(scheme.hues):
        found |= {f"hue{n}": hue.fill, f"edge{n}": hue.edge}
    return "".join(f"--{name}:{value};" for name, value in found.items())


_MARKUP: Mapping[type, Callable[[Any], str]] = {
    str: _paragraph,
    Toned: lambda toned: _paragraph(*toned),
    blocks.Pairs: _definitions,
    blocks.Notes: lambda notes: _listed(_cut(notes.texts, MOST_NOTES)),
    blocks.Item: lambda item: _paragraph(item.text) + _listed(_cut(item.lines, MOST_ITEM_LINES)),
    blocks.Source: _source,
    blocks.Legend: _keys,
    blocks.Timeline: _timeline,
}
