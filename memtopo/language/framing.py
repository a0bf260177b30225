"""A spec is one document, and that is one mapping: what may stand before and after it, and what does not do."""

from __future__ import annotations

import re

from yaml.events import AliasEvent, Event, ScalarEvent, SequenceStartEvent

from memtopo.diagnostics.model import Diagnostic
from memtopo.language.positions import Lines
from memtopo.language.problems import Refused

# Possessive throughout: 32 MiB of blank lines must not be walked twice.
_BLANK = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_ENDS = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+|(?<=\n)\.\.\.(?=\s|\Z))*+")
_VERSION = re.compile(r"%YAML[ \t]++1\.[12][ \t]*+(?:#[^\n]*+)?\r?\n")
_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?=[ \r\n]|\Z)", re.MULTILINE)
_CONFLICT_SIGNS = ("<<<<<<<", ">>>>>>>")


def check_start(text: str, lines: Lines) -> None:
    """Raise `Refused` for merge conflicts, and for directives, of which libyaml compares each with all others."""
    if any(sign in text for sign in _CONFLICT_SIGNS) and (match := _CONFLICT.search(text)):
        message = "a merge-conflict marker: two versions of this file were not merged"
        raise Refused(_fault("MT005", message, lines, *match.span(), help="keep one version, and remove the markers"))
    start = _past(_BLANK, text, 0)
    if match := _VERSION.match(text, start):
        start = _past(_BLANK, text, match.end())
    if text.startswith("%", start):
        raise Refused(_directive(text, start, lines))


def check_end(text: str, index: int, lines: Lines, *, explicit: bool) -> None:
    """Raise `Refused` where another document follows the first, which ended at `index`, if `explicit` with '...'."""
    index = _past(_ENDS, text, min(index, len(text)))
    if text.startswith("%", index):
        raise Refused(_directive(text, index, lines))
    if text.startswith("---", index) or (explicit and index < len(text)):
        message = "a second document starts here, and a spec is one"
        raise Refused(_fault("MT010", message, lines, index, index, help="put each spec into a file of its own"))


def nothing(text: str, lines: Lines) -> Diagnostic:
    """What to say of a text without a document."""
    what = "holds only comments and blank lines" if "#" in text else "is empty"
    return _fault("MT010", f"the file {what}; expected a mapping", lines, 0, 0)


def no_mapping(event: Event, lines: Lines) -> Diagnostic:
    """What to say where the document begins with something other than a mapping."""
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, AliasEvent):
        return _fault("MT006", "an alias is refused", lines, start, end)
    if isinstance(event, SequenceStartEvent):
        return _fault("MT010", "expected a mapping at the top of the file, found a list", lines, start, end)
    value = event.value if isinstance(event, ScalarEvent) else ""
    if not value:
        return _fault("MT010", "the document is empty; expected a mapping", lines, start, end)
    if ":" in value:
        return _fault("MT010", "expected a mapping; is a space missing after ':'?", lines, start, end)
    return _fault("MT010", "expected a mapping at the top of the file, found text", lines, start, end)


def _past(pattern: re.Pattern[str], text: str, index: int) -> int:
    match = pattern.match(text, index)
    return match.end() if match else index


def _directive(text: str, start: int, lines: Lines) -> Diagnostic:
    end = text.find("\n", start)
    end = end if end >= 0 else len(text)
    return _fault("MT005", "directives ('%') are not part of the language", lines, start, end, help="remove this line")


def _fault(code: str, message: str, lines: Lines, start: int, end: int, *, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, span=lines.span(start, end), help=help)
