"""Diagnostics at their places in a text: edits of it, which leave comments and layout as they are, and suppressions.

A comment `# memtopo: ignore[MT501] kept for the next version` applies to its own line, which must be the line of the
diagnostic's primary span:

- A warning that it names is not reported by any command.
- An error that it names is ignored by `memtopo validate`, for example where a spec is known not to fit one of several
  machines. It is never built: `plan` and `apply` refuse the spec as before.
- Codes of reading the text (MT0…) cannot be ignored: text that is not read is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import yaml
from msgspec import Struct

from memtopo.common.text import nearest, printable
from memtopo.common.units import shorten
from memtopo.diagnostics import CODES, messages
from memtopo.diagnostics.model import Diagnostic, Edit, Label, TextSpan
from memtopo.language.document import Document


class Located(Struct, frozen=True):
    """A diagnostic with its file's name, and its span and labels with theirs; None for what is not in the text."""

    diagnostic: Diagnostic
    file: str
    span: TextSpan | None
    labels: tuple[Label, ...]

    @property
    def location(self) -> str:
        """`file:line:column`, or the file's name alone."""
        return f"{self.file}:{self.span.line}:{self.span.column}" if self.span else self.file

    def headline(self, paint: Callable[[str, str], str] = lambda text, _style: text) -> str:
        """`file:line:column: error[MT301]: …`; `paint` gives a text a style."""
        code = paint(f"{self.diagnostic.severity}[{self.diagnostic.code}]", self.diagnostic.severity)
        return f"{paint(printable(self.location), 'strong')}: {code}: {printable(self.diagnostic.message)}"


def located(diagnostics: Iterable[Diagnostic], document: Document) -> list[Located]:
    """Locate the diagnostics of one document, sorted by position; those without one come first."""
    found = []
    for each in diagnostics:
        labels = tuple(label._replace(span=document.span_of(label)) for label in each.labels)
        found.append(Located(each, document.name, document.span_of(each), labels))
    nowhere = TextSpan(0, 0, 0, 0)
    return sorted(found, key=lambda each: (each.span or nowhere, each.diagnostic.code, each.diagnostic.message))


_WORD = "[A-Za-z0-9_-]"


class Replacement(NamedTuple):
    """Characters from `start` to `end` of a text, counted from 0, and what takes their place."""

    start: int
    end: int
    text: str


def replacements(document: Document, edits: Collection[Edit]) -> dict[Edit, Replacement]:
    """Return what each edit replaces, without edits that are not possible or contradict one another."""
    made = {edit: found for edit in edits if (found := _replacement(document, edit))}
    return {edit: each for edit, each in made.items() if not any(_contradicts(each, other) for other in made.values())}


def edited(text: str, made: Collection[Replacement]) -> str:
    """Return a text with replacements made; equal ones are one."""
    for each in sorted(set(made), reverse=True):
        text = text[: each.start] + each.text + text[each.end :]
    return text


def _contradicts(one: Replacement, other: Replacement) -> bool:
    if one == other:
        return False
    return one.start == other.start or max(one.start, other.start) < min(one.end, other.end)


def _replacement(document: Document, edit: Edit) -> Replacement | None:
    """Return the place of an edit in the text; None if the text there is another one, or if there are several."""
    if not edit.old:
        return _addition(document, edit)
    found = document.offsets(edit.path, edit.at)
    if found is None:
        return None
    pattern = f"(?<!{_WORD}){re.escape(edit.old)}(?!{_WORD})"
    places = [*re.compile(pattern).finditer(document.text, *found)]
    return Replacement(places[0].start(), places[0].end(), edit.new) if len(places) == 1 else None


def _addition(document: Document, edit: Edit) -> Replacement | None:
    """Return the place after the last entry of a mapping that has a value on one line; None if the key is there."""
    mapping, found = document.written(edit.path), document.offsets(edit.path, "value")
    if not isinstance(mapping, Mapping) or found is None or edit.new.partition(":")[0] in mapping:
        return None
    scalars = [key for key, value in mapping.items() if isinstance(value, str) and value]
    if not scalars:
        return None
    _, end = document.offsets((*edit.path, scalars[-1]), "value") or found
    text = document.text
    if text[found[0]] == "{":
        return Replacement(end, end, f", {edit.new}")
    key, _ = document.offsets((*edit.path, scalars[-1]), "key") or found
    line = text.rfind("\n", 0, key) + 1
    margin = text[line:key] if not text[line:key].strip() else None
    if margin is None or "\n" in text[key:end]:
        return None
    stop = text.find("\n", end)
    newline = line - 1 if stop < 0 else stop  # the last line may have none
    ending = "\r\n" if text[newline - 1] == "\r" else "\n"
    if stop < 0:
        return Replacement(len(text), len(text), f"{ending}{margin}{edit.new}")
    return Replacement(stop + 1, stop + 1, f"{margin}{edit.new}{ending}")


NEVER = "MT0"
"""Prefix of the codes that cannot be ignored."""

MOST_CODES = 100_000
"""Codes in the comments of one text that are read; each needs some microseconds, and memory for its position."""

_MARKER = re.compile(r"#[ \t]*+memtopo:[ \t]*+ignore\b(?:[ \t]*+\[(?P<codes>[^\]\n]*+)\])?")
_CODE = re.compile(r"[\[,]([^,]*)")
_UNUSED = "MT505"
_EXCESS = f"only the first {MOST_CODES:,} codes in the comments of a text are read, and this is the next"
_REMOVE = "remove it from the comment"
_REMOVE_UNUSED = "remove comments that ignore nothing"
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
    unused = [Diagnostic(_UNUSED, _EXCESS, help=_REMOVE_UNUSED, span=each.span) for each in excess]
    unused += messages.first(_unused(entries, used, complete=complete))
    matched += [(each, _comment_on(each, document, codes)) for each in unused]
    noted = []
    for each, comment in matched:
        never_built = comment and each.severity == "error"
        noted.append((each._replace(notes=(*each.notes, _NOTE)) if never_built else each, comment))
    return Filtered(
        reported=tuple(each for each, comment in noted if not comment or each.severity == "error"),
        ignored=tuple(each for each, comment in noted if comment),
        used=frozenset(comment for _, comment in matched if comment),
    )


def _comment_on(each: Diagnostic, document: Document, codes: Mapping[tuple[int, str], TextSpan]) -> TextSpan | None:
    """Return the span of the code in a comment on a diagnostic's line, if there is one."""
    span = document.span_of(each)
    return codes.get((span.line, each.code)) if span else None


def _entries(document: Document) -> Iterator[_Entry]:
    for match in _comments(document):
        if not (match["codes"] or "").strip():
            yield _Entry("", document.lines.span(*match.span()))
            continue
        start, stop = match.span("codes")
        for code in _CODE.finditer(document.text, start - 1, stop):
            written = code[1]
            inner = code.start(1) + len(written) - len(written.lstrip())
            yield _Entry(written.strip(), document.lines.span(inner, inner + len(written.strip())))


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
