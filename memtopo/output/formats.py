"""Formats of validation results by name, and the two that are plain text.

The other formats are in `ci`, which is imported only when one of them is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal, get_args

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.common.text import display_width, output_line, printable
from memtopo.diagnostics.messages import choose
from memtopo.output import validation
from memtopo.output.plain import DEFAULT_WIDTH, paint
from memtopo.rules.files import Checked

Format = Literal["text", "concise", "json", "sarif", "junit", "github", "gitlab", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)
TEXT_FORMATS: tuple[Format, ...] = ("text", "concise")
BEGINNINGS = rb"""(?x)
    \{\s*"(memtopo_diagnostics"|error":\s\{)
    | \{\s*"\$schema":\s"[^"]*/sarif-schema-[^"]*",\s*"version":[^\[]*\[\s*\{\s*"tool":[^\[]*"name":\s"memtopo"
    | <\?xml[^>]*>\n<testsuites\ name="memtopo"
    | ::(error|warning)\ (file=|title=memtopo::)
    | \[\]\n | \[\s*\{\s*"description":\s"
    | \#\#\ memtopo\n
    | [^\n]*:\ (error|warning)\[MT\d+\]:\  | [^\n]*:\ ok\ (on\ |without\ a\ machine)
    | spec\ \  | [\d,]+\ files?\ (on\ |without\ a\ machine)
    """
"""How documents of all formats begin, if they are not empty."""


def format_named(name: str) -> Format:
    """The format with a name. Raises `UsageError`."""
    for format_ in FORMATS:
        if format_ == name:
            return format_
    raise UsageError(f"there is no format {name!r}", hint=choose(name, FORMATS))


def formatted(format_: Format, checked: Checked, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """Validation results in a format, as lines; width and colour apply to the text formats."""
    if format_ in TEXT_FORMATS:
        # Every diagnostic once with its source lines, a table if there are several machines, and a summary.
        whole = chain(_diagnostics(checked, width, colour=colour), _summary(checked, colour=colour))
        text = whole if format_ == "text" else _concise(checked, colour=colour)
        return [output_line(line, styled=colour) for line in text]
    return _of_ci(format_)[0](checked)


def failure(format_: Format, error: MemtopoError) -> list[str]:
    """The error of a validation that could not be made: a whole document; nothing in the text formats."""
    return [] if format_ in TEXT_FORMATS else _of_ci(format_)[1](error)


def _of_ci(format_: Format) -> tuple[Callable[[Checked], list[str]], Callable[[MemtopoError], list[str]]]:
    from memtopo.output.ci import WRITERS  # noqa: PLC0415 needed only for these formats

    return WRITERS[format_]


def _concise(checked: Checked, *, colour: bool) -> list[str]:
    from memtopo.output import diagnostics  # noqa: PLC0415 needed only if there are diagnostics

    lines: list[str] = []
    for file in checked.files:
        lines += diagnostics.concise(validation.merged(file, in_message=True), file.document, colour=colour)
    return lines


def _diagnostics(checked: Checked, width: int, *, colour: bool) -> Iterator[str]:
    several = len(checked.files) * len(checked.machines) > 1
    for file in checked.files:
        if found := validation.merged(file):
            from memtopo.output import diagnostics  # noqa: PLC0415 needed only if there are diagnostics

            yield from diagnostics.text(found, file.document, width=width, colour=colour)
            if several:
                yield ""


def _summary(checked: Checked, *, colour: bool) -> Iterator[str]:
    if len(checked.machines) > 1:
        yield from (*_matrix(checked, colour=colour), "")
    if len(checked.machines) > 1 or len(checked.files) > 1:
        yield printable(validation.total(checked))
    elif checked.ok:
        (file,) = checked.files
        name, where = printable(file.document.file), printable(validation.on_machine(checked.machines[0]))
        (result,) = file.results
        yield f"{name}: ok {where}{validation.estimated(result)}{validation.ignored(file.results)}"


def _matrix(checked: Checked, *, colour: bool) -> list[str]:
    """A table with a row for each spec and a column for each machine, or a row for each combination of settings."""
    heading = [*map(printable, validation.headings(checked))]
    rows = [[printable(name), *map(validation.verdict, results)] for name, results in validation.rows(checked)]
    widths = [max(map(display_width, column)) for column in zip(heading, *rows, strict=True)]
    return [_row(heading, widths, "strong", colour=colour), *(_row(row, widths, "", colour=colour) for row in rows)]


def _row(cells: list[str], widths: list[int], style: str, *, colour: bool) -> str:
    styles = [style, *(style or _verdict_style(cell) for cell in cells[1:])]
    return "  ".join(
        (paint(cell, used, colour=colour) if used else cell) + " " * (width - display_width(cell))
        for cell, used, width in zip(cells, styles, widths, strict=True)
    ).rstrip()


def _verdict_style(verdict: str) -> str:
    if verdict == "ok":
        return ""
    return "error" if "error" in verdict else "warning"
