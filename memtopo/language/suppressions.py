"""Suppression comments: `# memtopo: ignore[MT501] kept for the next version`.

A comment applies to its own line, which must be the line of the diagnostic's primary span:

- A warning that it names is not reported by any command.
- An error that it names is ignored by `memtopo validate`, for example where a spec is known not to fit one of several
  machines. It is never built: `plan` and `apply` refuse the spec as before.
- Codes of reading the text (MT0…) cannot be ignored: text that is not read is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import yaml
from msgspec import Struct

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics import CODES, messages
from memtopo.diagnostics.model import Diagnostic, TextSpan
from memtopo.language.document import Document

NEVER = "MT0"
"""Prefix of the codes that cannot be ignored."""

MOST_CODES = 100_000
"""Codes in the comments of one text that are read; each needs some microseconds, and memory for its position."""

_MARKER = re.compile(r"#[ \t]*+memtopo:[ \t]*+ignore\b(?:[ \t]*+\[(?P<codes>[^\]\n]*+)\])?")
_UNUSED = "MT505"
_EXCESS = f"only the first {MOST_CODES:,} codes in the comments of a text are read, and this is the next"
_REMOVE = "remove it from the comment"
_HELP = "write '# memtopo: ignore[MT501] reason', with the codes to ignore"
_NOTE = "the comment on this line affects 'memtopo validate' only; a spec with an error is never built"


class Filtered(Struct, frozen=True):
    """Diagnostics of a document after its suppression comments were applied.

    `ignored` are the diagnostics that a comment names; the errors among them are also `reported`. `used` are the spans
    of the codes in comments that named a diagnostic.
    """

    reported: tuple[Diagnostic, ...]
    ignored: tuple[Diagnostic, ...] = ()
    used: frozenset[TextSpan] = frozenset()


class _Entry(Struct, frozen=True):
    """One code in a comment and its span; a comment without codes has an empty code and the span of the comment."""

    code: str
    span: TextSpan


def apply_suppressions(found: Sequence[Diagnostic], document: Document, *, complete: bool) -> Filtered:
    """Split diagnostics by the comments of a document, and add MT505 for each code that ignores nothing.

    Unused codes are reported only if `found` is `complete`: errors may have kept some rules from running.
    """
    every = list(islice(_entries(document), MOST_CODES + 1))
    if not every:
        return Filtered(tuple(found))
    entries, excess = every[:MOST_CODES], every[MOST_CODES:]
    codes = {(entry.span.line, entry.code): entry.span for entry in entries if not _invalid(entry.code)}
    matched = [(each, _comment_on(each, document, codes)) for each in found]
    used = frozenset(comment for _, comment in matched if comment)
    unused = [
        Diagnostic(_UNUSED, _EXCESS, help="remove comments that ignore nothing", span=each.span) for each in excess
    ]
    unused += messages.first(_unused(entries, used, complete=complete))
    matched += [(each, _comment_on(each, document, codes)) for each in unused]
    noted = [(_with_note(each) if comment else each, comment) for each, comment in matched]
    return Filtered(
        reported=tuple(each for each, comment in noted if not comment or each.severity == "error"),
        ignored=tuple(each for each, comment in noted if comment),
        used=frozenset(comment for _, comment in matched if comment),
    )


def _comment_on(each: Diagnostic, document: Document, codes: Mapping[tuple[int, str], TextSpan]) -> TextSpan | None:
    """Return the span of the code in a comment on a diagnostic's line, if there is one."""
    span = document.span_of(each)
    return codes.get((span.line, each.code)) if span else None


def _with_note(ignored: Diagnostic) -> Diagnostic:
    return ignored._replace(notes=(*ignored.notes, _NOTE)) if ignored.severity == "error" else ignored


def _entries(document: Document) -> Iterator[_Entry]:
    for match in _comments(document):
        if not (match["codes"] or "").strip():
            yield _Entry("", document.lines.span(*match.span()))
            continue
        yield from _codes(document, *match.span("codes"))


def _codes(document: Document, start: int, stop: int) -> Iterator[_Entry]:
    """Codes between two offsets of a text, separated by commas."""
    while start <= stop:
        comma = document.text.find(",", start, stop)
        end = comma if comma >= 0 else stop
        written = document.text[start:end]
        inner = start + len(written) - len(written.lstrip())
        yield _Entry(written.strip(), document.lines.span(inner, inner + len(written.strip())))
        start = end + 1


def _unused(entries: Sequence[_Entry], used: frozenset[TextSpan], *, complete: bool) -> Iterator[Diagnostic]:
    """MT505 for each entry without a code that can be ignored, or with one that matches no diagnostic."""
    invalid = 0
    for entry in entries:
        if reason := _invalid(entry.code):
            suggest = entry.code and invalid < messages.SUGGESTED
            meant = nearest(entry.code.upper(), CODES) if suggest and entry.code not in CODES else None
            help = f"did you mean {meant}?" if meant else _HELP
            if entry.code in CODES:
                help = _REMOVE
            yield Diagnostic(_UNUSED, reason, help=help, span=entry.span)
            invalid += 1
        elif complete and entry.code != _UNUSED and entry.span not in used:
            yield Diagnostic(_UNUSED, f"no {entry.code} is found on this line", help=_REMOVE, span=entry.span)


def _invalid(code: str) -> str | None:
    """Return the reason why a code in a comment cannot be ignored, if there is one."""
    if not code:
        return "the comment names no code"
    if code not in CODES:
        return f"{shorten(code)!r} is no code"
    return f"{code} cannot be ignored: what is not read is not checked" if code.startswith(NEVER) else None


def _comments(document: Document) -> Iterator[re.Match[str]]:
    """Suppression comments of a text that was read, if some values of it were.

    After a syntax error, a '#' in quotes begins a comment, too: there, comments cannot be distinguished from values.
    """
    if not _MARKER.search(document.text) or not len(document.positions):
        return
    scalars = _scalars(document.text)
    start, end = next(scalars, (len(document.text), 0))
    for match in _MARKER.finditer(document.text):
        while end <= match.start() and start < len(document.text):
            start, end = next(scalars, (len(document.text), 0))
        if match.start() < start:
            yield match


def _scalars(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each key and value, up to a syntax error; a '#' between them begins a comment."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    with suppress(yaml.YAMLError):
        while loader.check_token():
            token = loader.get_token()
            if isinstance(token, yaml.ScalarToken):
                yield token.start_mark.index, token.end_mark.index
