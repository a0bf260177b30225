"""How a check of many specs reads, whatever it is written as: verdicts, sums, and faults with their machines."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Diagnostic, Label, Span
from memtopo.output.humanize import plural
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


if TYPE_CHECKING:
    from memtopo.language import Document


@dataclass(frozen=True, slots=True)
class Placed:
    """A diagnostic, its file's name, its own span, and the span of each of its labels; None where there is no place."""

    diagnostic: Diagnostic
    file: str
    span: Span | None
    label_spans: tuple[Span | None, ...]

    @property
    def place(self) -> str:
        """`file:line:column`, or the file's name alone."""
        return f"{self.file}:{self.span.line}:{self.span.column}" if self.span else self.file

    @property
    def labels(self) -> Iterable[tuple[Label, Span | None]]:
        return zip(self.diagnostic.labels, self.label_spans, strict=True)


def placed(diagnostics: Iterable[Diagnostic], document: Document) -> list[Placed]:
    """The diagnostics of one document in the order of their places, those without one first."""
    return sorted((_place(diagnostic, document) for diagnostic in diagnostics), key=_order)


def _place(diagnostic: Diagnostic, document: Document) -> Placed:
    labels = tuple(_find(label, document) for label in diagnostic.labels)
    return Placed(diagnostic, document.name, _find(diagnostic, document), labels)


def _find(thing: Diagnostic | Label, document: Document) -> Span | None:
    return thing.span or (document.span(thing.path, thing.at) if thing.path else None)


def _order(fault: Placed) -> tuple[Span, str, str]:
    return fault.span or Span(0, 0, 0, 0), fault.diagnostic.code, fault.diagnostic.message


def fingerprints(faults: Iterable[Placed]) -> Iterator[str]:
    """One mark for each fault, made of its file, its code and its path in the spec; equal ones are numbered."""
    seen: Counter[str] = Counter()
    for fault in faults:
        diagnostic = fault.diagnostic
        known = diagnostic.path or diagnostic.message
        thing = repr((from_top(fault.file), diagnostic.code, known))
        yield hashlib.sha256(f"{thing} {seen[thing]}".encode(errors="surrogateescape")).hexdigest()[:32]
        seen[thing] += 1
