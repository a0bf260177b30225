"""Comments that tell memtopo to pass over a diagnostic: `# memtopo: ignore[MT501] kept for the next version`.

A comment speaks of its own line, which has to be the one of the diagnostic's primary place. What it does:

- A warning that it names is not told, by any command.
- An error that it names is passed over by `memtopo validate`, say where a spec is known not to fit one of several
  machines. Nothing is ever built over it: `plan` and `apply` refuse the spec as before.
- Codes of reading the text (MT0…) cannot be ignored: what is not read is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import yaml
from yaml.tokens import ScalarToken

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics import messages
from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.model import Diagnostic, Span
from memtopo.language.document import Document

NEVER = "MT0"
"""What the codes that cannot be ignored begin with."""

_MARKER = re.compile(r"#[ \t]*+memtopo:[ \t]*+ignore\b(?:[ \t]*+\[(?P<codes>[^\]\n]*+)\])?")
_STALE = "MT505"
_REMOVE = "remove it from the comment"
_HELP = "write '# memtopo: ignore[MT501] reason', with the codes that are meant"
_NOTE = "the comment on this line is for 'memtopo validate' alone; nothing is built over an error"


class Sorted(NamedTuple):
    """Diagnostics after a document's comments.

    `ignored` are those that a comment names; the errors among them are in `told` as well. `used` has the place of each
    code in a comment that named a diagnostic.
    """

    told: tuple[Diagnostic, ...]
    ignored: tuple[Diagnostic, ...] = ()
    used: frozenset[Span] = frozenset()


class _Entry(NamedTuple):
    """One code in a comment, with its place; of a comment without codes, the comment."""

    code: str
    span: Span


def sort_out(found: Sequence[Diagnostic], document: Document, *, sure: bool) -> Sorted:
    """Part what is told from what comments ignore, and add MT505 for each code that is ignored in vain.

    Where it is not `sure` that every rule spoke, nothing is called vain.
    """
    if not (entries := list(_entries(document))):
        return Sorted(tuple(found))
    sieve = _Sieve(document, {(entry.span.line, entry.code): entry.span for entry in entries if not _wrong(entry.code)})
    for fault in found:
        sieve.take(fault)
    for fault in messages.first(_stale(entries, frozenset(sieve.used), sure=sure)):
        sieve.take(fault)
    return Sorted(tuple(sieve.told), tuple(sieve.ignored), frozenset(sieve.used))


class _Sieve:
    """Takes diagnostics one by one, and holds them to what the comments of their lines say."""

    def __init__(self, document: Document, comments: dict[tuple[int, str], Span]) -> None:
        self.told: list[Diagnostic] = []
        self.ignored: list[Diagnostic] = []
        self.used: set[Span] = set()
        self._document = document
        self._comments = comments

    def take(self, fault: Diagnostic) -> None:
        place = fault.span or (self._document.span(fault.path, fault.at) if fault.path else None)
        comment = self._comments.get((place.line, fault.code)) if place else None
        if comment is None:
            self.told.append(fault)
            return
        self.used.add(comment)
        if fault.severity == "error":
            fault = fault._replace(notes=(*fault.notes, _NOTE))
            self.told.append(fault)
        self.ignored.append(fault)


def _entries(document: Document) -> Iterator[_Entry]:
    for match in _comments(document, _MARKER):
        start, end = match.span("codes")
        if not (match["codes"] or "").strip():
            yield _Entry("", document.lines.span(*match.span()))
            continue
        for code in match["codes"].split(","):
            end = start + len(code)
            inner = start + len(code) - len(code.lstrip())
            yield _Entry(code.strip(), document.lines.span(inner, inner + len(code.strip())))
            start = end + 1


def _stale(entries: Sequence[_Entry], used: frozenset[Span], *, sure: bool) -> Iterator[Diagnostic]:
    """MT505 for every entry that names no code that can be ignored, or one that nothing on its line has."""
    wrong = 0
    for entry in entries:
        if told := _wrong(entry.code):
            yield Diagnostic(_STALE, told, help=_right(entry.code, guess=wrong < messages.SUGGESTED), span=entry.span)
            wrong += 1
        elif sure and entry.code != _STALE and entry.span not in used:
            yield Diagnostic(_STALE, f"no {entry.code} is found on this line", help=_REMOVE, span=entry.span)


def _wrong(code: str) -> str | None:
    """Why a code in a comment means nothing."""
    if not code:
        return "the comment names no code"
    if code not in CODES:
        return f"{shorten(code)!r} is no code"
    return f"{code} cannot be ignored: what is not read is not checked" if code.startswith(NEVER) else None


def _right(code: str, *, guess: bool) -> str:
    """What to write for a code that means nothing."""
    if code in CODES:
        return _REMOVE
    meant = nearest(code.upper(), CODES) if code and guess else None
    return f"did you mean {meant}?" if meant else _HELP


def _comments(document: Document, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Where a pattern, which begins with the sign of a comment, matches in a comment of a text that was read whole.

    A text that ended in a syntax error has none: what is a comment there nobody knows.
    """
    matches = list(pattern.finditer(document.text))
    if not matches or not len(document.places):
        return
    scalars = _scalars(document.text)
    start, end = next(scalars, (len(document.text), 0))
    for match in matches:
        while end <= match.start() and start < len(document.text):
            start, end = next(scalars, (len(document.text), 0))
        if match.start() < start:
            yield match


def _scalars(text: str) -> Iterator[tuple[int, int]]:
    """Where each key and value starts and ends: a sign in between begins a comment."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    while loader.check_token():
        token = loader.get_token()
        if isinstance(token, ScalarToken):
            yield token.start_mark.index, token.end_mark.index
