"""Page of a probe: the sections of its text, with matrices as heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.output import humanize
from memtopo.output import probe as rendering
from memtopo.output.diagram.markup import text
from memtopo.output.html.document import Cell, Column, Table, Tone, Toned, document, note, section, tables, verdict
from memtopo.output.html.style import HEAT
from memtopo.output.pages import Grid, Section
from memtopo.probe.report import ProbeReport, Times

_SCALE = (
    '<ul class="keys"><li>none</li><li class="scale">'
    + "".join(f'<i style="background:{fill}"></i>' for fill, _ in HEAT)
    + "</li><li>the most in its matrix</li></ul>"
)
_MOST_TRIALS = 24


def page(report: ProbeReport) -> str:
    """A probe as an HTML document."""
    notes = (*report.notes, *report.left)
    head, *sections = rendering.page(report.machine, report.name, simulated=report.simulated, notes=notes)
    if report.against:
        sections.insert(0, rendering.against(report.against.differences, report.against.name))
    body = [
        verdict(*_verdict(report)),
        *(note(line) for line in head.body if isinstance(line, str)),
        *map(_section, sections),
        _times(report.seconds),
    ]
    return document(head.title, "memtopo probe", "", body)


def _verdict(report: ProbeReport) -> tuple[str, Tone]:
    if report.left:
        return f"processes are left: {len(report.left)}", "bad"
    if report.against and not report.against.fits:
        return f"the record {report.against.name!r} does not fit this machine", "bad"
    trials = [trial for memory in report.machine.locations.values() for trial in memory.trials.values()]
    works = sum(trial.works is True for trial in trials)
    return f"{works} of {humanize.plural(len(trials), 'trial')} work", "good"


def _section(shown: Section) -> str:
    """A section, with the line before a matrix as its caption."""
    return section(shown.title[:1].upper() + shown.title[1:], *_body(shown.body))


def _body(items: Sequence[str | Grid]) -> Iterator[str]:
    caption = ""
    if any(isinstance(item, Grid) and item.heat for item in items):
        yield _SCALE
    matrices = ""
    for item in items:
        if isinstance(item, Grid):
            if item.close:
                matrices += _matrix(item, caption)
            else:
                yield _table(item)
        elif not item.endswith(":"):
            yield note(item.strip())
        caption = item.rstrip(":") if isinstance(item, str) and item.endswith(":") else ""
    if matrices:
        yield f'<div class="matrices">{matrices}</div>'


def _table(grid: Grid) -> str:
    return tables(Table("", [Column(name) for name in grid.columns], [_toned(grid.columns, row) for row in grid.rows]))


def _toned(columns: Sequence[str], row: Sequence[str]) -> Sequence[Cell]:
    """A row, in which colours show what works, and what does not although it is advertised."""
    found = dict(zip(columns, row, strict=False))
    tones: dict[str, Tone] = {"yes": "good", "no": "bad" if found.get("advertised") == "yes" else ""}
    return [
        Toned(cell, tones.get(cell, "")) if name == "works" else cell for name, cell in zip(columns, row, strict=True)
    ]


def _matrix(grid: Grid, caption: str) -> str:
    """A row and a column for each GPU; the colours go from the least to the most."""
    heads = "".join(f'<th scope="col">{text(name)}</th>' for name in grid.columns)
    heat = grid.heat or [() for _ in grid.rows]
    rows = "".join(_row(row, colours) for row, colours in zip(grid.rows, heat, strict=True))
    words = f"<caption>{text(caption)}</caption>" if caption else ""
    return f'<div class="heat"><table>{words}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _row(row: Sequence[str], heat: Sequence[float | None]) -> str:
    name, *cells = row
    content = "".join(
        f'<td data-of="{text(name)}"{_colour(heat[index] if heat else None)}>{text(cell)}</td>'
        for index, cell in enumerate(cells)
    )
    return f'<tr><th scope="row">{text(name)}</th>{content}</tr>'


def _colour(share: float | None) -> str:
    if share is None:
        return ""
    return f' class="h{max(0, min(int(share * len(HEAT)), len(HEAT) - 1))}"'


def _times(times: Times) -> str:
    """Times of the probe itself, the longest trials first."""
    longest = sorted(times.trials, key=lambda each: -each.seconds)
    rows = [(each.what, each.by, humanize.duration(each.seconds)) for each in longest]
    columns = Column("trial"), Column("by"), Column("time", "number")
    total, starting, contexts = map(humanize.duration, (times.total, times.starting, times.contexts))
    words = f"{total} in all; the slowest child took {starting} to start, and the contexts {contexts}."
    return section("Times", tables(Table.bounded("", columns, rows, _MOST_TRIALS)), note=words)
