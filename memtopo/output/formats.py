"""The forms in which a check can be written, by name. Each is imported where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Literal, Protocol, cast, get_args

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.common.text import display_width, printable
from memtopo.diagnostics.messages import choose
from memtopo.output import validation
from memtopo.output.plain import DEFAULT_WIDTH, paint
from memtopo.output.validation import verdict
from memtopo.rules.files import Checked

Format = Literal["text", "concise", "json", "sarif", "junit", "github", "gitlab", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)


class _Form(Protocol):
    """What the module of a form has, which is named after it."""

    def lines(self, checked: Checked, /) -> list[str]: ...

    def failure(self, error: MemtopoError, /) -> list[str]: ...


def written(form: Format, checked: Checked, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """A check in one of the forms, as lines; width and colour are for those that people read."""
    if form not in ("text", "concise"):
        return _form(form).lines(checked)
    return text(checked, width=width, colour=colour) if form == "text" else concise(checked, colour=colour)


def failure(form: Format, error: MemtopoError) -> list[str]:
    """What is written where the check could not be made: in every form that is a document, a whole one."""
    return [] if form in ("text", "concise") else _form(form).failure(error)


def format_named(name: str) -> Format:
    """The format with a name. Raises `UsageError`."""
    for form in FORMATS:
        if form == name:
            return form
    raise UsageError(f"there is no format {name!r}", hint=choose(name, FORMATS))


def _form(form: Format) -> _Form:
    return cast("_Form", import_module(f"memtopo.output.{form}"))


def text(checked: Checked, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """Every fault once; of several machines a table; of one file that it is ok, of several a sum."""
    return [*_faults(checked, width, colour=colour), *_end(checked, colour=colour)]


def concise(checked: Checked, *, colour: bool = False) -> list[str]:
    """One line for each fault, and nothing else."""
    from memtopo.output import diagnostics  # noqa: PLC0415 imported where it is used

    return [
        line
        for file in checked.files
        for line in diagnostics.concise(validation.told_briefly(file), file.document, colour=colour)
    ]


def _faults(checked: Checked, width: int, *, colour: bool) -> Iterator[str]:
    several = len(checked.files) * len(checked.machines) > 1
    for file in checked.files:
        if told := validation.told(file):
            from memtopo.output import diagnostics  # noqa: PLC0415 imported where it is used

            yield from diagnostics.text(told, file.document, width=width, colour=colour)
            if several:
                yield ""


def _end(checked: Checked, *, colour: bool) -> Iterator[str]:
    if len(checked.machines) > 1:
        yield from (*matrix(checked, colour=colour), "")
    if len(checked.machines) > 1 or len(checked.files) > 1:
        yield validation.total(checked)
    elif checked.ok:
        (file,) = checked.files
        yield f"{printable(file.document.name)}: ok on {checked.machines[0]}{validation.ignored(file.results)}"


_GAP = "  "


def matrix(checked: Checked, *, colour: bool = False) -> list[str]:
    """A row for each spec and a column for each machine."""
    heading = ["spec", *(printable(machine) for machine in checked.machines)]
    rows = [[printable(file.document.name), *(verdict(each) for each in file.results)] for file in checked.files]
    widths = [max(map(display_width, column)) for column in zip(heading, *rows, strict=True)]
    return [_line(heading, widths, "strong", colour=colour), *(_line(row, widths, "", colour=colour) for row in rows)]


def _line(cells: list[str], widths: list[int], style: str, *, colour: bool) -> str:
    return _GAP.join(_padded(cells, widths, style, colour=colour)).rstrip()


def _padded(cells: list[str], widths: list[int], style: str, *, colour: bool) -> Iterator[str]:
    for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        kind = style or (_kind(cell) if index else "")
        yield (paint(cell, kind, colour=colour) if kind else cell) + " " * (width - display_width(cell))


def _kind(cell: str) -> str:
    if cell == "ok":
        return ""
    return "error" if "error" in cell else "warning"
