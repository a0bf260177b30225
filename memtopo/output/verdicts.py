"""How a check of many specs reads, whatever it is written as: verdicts, sums, and faults with their machines."""

from __future__ import annotations

import os
from collections.abc import Iterable

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Diagnostic
from memtopo.output.places import Placed, placed
from memtopo.output.words import plural
from memtopo.rules.files import Checked, File, Result, SharedDiagnostic

STDIN = "<stdin>"
_TOPS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


def verdict(result: Result | File) -> str:
    """`ok`, or `2 errors, 1 warning`."""
    errors, warnings = result.count("error"), result.count("warning")
    told = [plural(count, thing) for count, thing in ((errors, "error"), (warnings, "warning")) if count]
    return ", ".join(told) or "ok"


def total(checked: Checked) -> str:
    """All files in one line: `12 files on h200x2: 10 ok, 2 with errors; 1 diagnostic ignored by comments`."""
    worst = [_worst(file) for file in checked.files]
    words = {"ok": "ok", "warning": "with warnings", "error": "with errors"}
    told = ", ".join(f"{worst.count(kind):,} {word}" for kind, word in words.items() if kind in worst)
    where = checked.machines[0] if len(checked.machines) == 1 else plural(len(checked.machines), "machine")
    return f"{plural(len(checked.files), 'file')} on {where}: {told}{ignored(checked.results)}"


def ignored(results: Iterable[Result]) -> str:
    """What comments ignore of some results, as the end of a line; nothing where they ignore nothing."""
    count = sum(result.ignored for result in results)
    return f"; {plural(count, 'diagnostic')} ignored by comments" if count else ""


def told(file: File) -> list[Diagnostic]:
    """Every fault of a file once; one that not all machines share has a note of those that do."""
    return [
        each.diagnostic._replace(notes=(*each.diagnostic.notes, only(each))) if each.only else each.diagnostic
        for each in file.diagnostics()
    ]


def told_briefly(file: File) -> list[Diagnostic]:
    """The same for a single line each: the machines stand in the message."""
    return [
        each.diagnostic._replace(message=f"{each.diagnostic.message} ({only(each)})") if each.only else each.diagnostic
        for each in file.diagnostics()
    ]


def only(shared: SharedDiagnostic) -> str:
    """Which machines a fault is on, where it is not on all."""
    return f"only on {', '.join(shared.only)}"


def places(checked: Checked) -> list[Placed]:
    """Every fault once with its place, file by file, with the notes of `told`."""
    return [fault for file in checked.files for fault in placed(told(file), file.document)]


def prose(diagnostic: Diagnostic) -> str:
    """A message with its notes and its help, a line each."""
    help = [f"help: {diagnostic.help}"] if diagnostic.help else []
    return "\n".join((diagnostic.message, *(f"note: {note}" for note in diagnostic.notes), *help))


def error_prose(error: MemtopoError) -> str:
    """An error with its hint, a line each."""
    return error.message if error.hint is None else f"{error.message}\nhint: {error.hint}"


def from_top(name: str) -> str:
    """A file's path from the top of the repository that CI checked out, or else from the current folder.

    Of a file that is elsewhere, its whole path.
    """
    if name == STDIN:
        return name
    path = os.path.abspath(name)  # noqa: PTH100 a link stays what it is, and another file is not named instead
    for top in (*(os.environ.get(variable) for variable in _TOPS), os.curdir):
        if top and not (relative := os.path.relpath(path, top)).startswith(".."):
            return relative
    return path


def _worst(file: File) -> str:
    return next((severity for severity in ("error", "warning") if file.count(severity)), "ok")
