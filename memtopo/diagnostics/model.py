"""Diagnostics of a spec as data: the error, its path, and the correction.

A diagnostic has a path; `memtopo.language` converts paths to positions in the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from memtopo.common.text import bounded, printable
from memtopo.diagnostics import CODES, Severity

Path = tuple[str | int, ...]
"""Keys and list indices from the top of the document: `("chunks", "hot", "size")`."""

At = Literal["key", "value"]


class TextSpan(NamedTuple):
    """Part of a text, in lines and columns from 1, counted in characters; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Label(NamedTuple):
    """Secondary location of a diagnostic, with a text about it."""

    text: str
    path: Path
    at: At = "value"
    span: TextSpan | None = None


class Edit(NamedTuple):
    """Edit of a spec's text: `old`, a word of the key or value at a path, becomes `new`.

    Without `old`, `new` is an entry that is added to the mapping at the path: `handles: [fd]`.
    """

    path: Path
    at: At
    old: str
    new: str


class Diagnostic(NamedTuple):
    """One error or warning at `path` and `at`; `span` is set only if there is no path (syntax errors).

    `edit` corrects it, and is set only where there is exactly one correction.
    """

    code: str
    message: str
    path: Path = ()
    at: At = "value"
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    span: TextSpan | None = None
    edit: Edit | None = None

    @property
    def severity(self) -> Severity:
        return CODES[self.code]

    def escaped(self) -> Diagnostic:
        """Return it with its texts as one printable line each; names in the spec may have any characters."""
        labels = tuple(each._replace(text=_shown(each.text)) for each in self.labels)
        help = None if self.help is None else _shown(self.help)
        notes = tuple(map(_shown, self.notes))
        return self._replace(message=_shown(self.message), labels=labels, notes=notes, help=help)


def _shown(text: str) -> str:
    return printable(bounded(text))


class InvalidValue(ValueError):
    """Rejection of a value by a field; becomes a `Diagnostic` at the field's path.

    `meant` is the text that must have been meant, if there is exactly one.
    """

    def __init__(
        self, code: str, message: str, *, help: str | None = None, at: At = "value", meant: str | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.help, self.at, self.meant = code, message, help, at, meant

    def __str__(self) -> str:
        return self.message


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Return true if any of the diagnostics is an error, so that the spec cannot be built."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)
