"""Values of a text alone, without positions: most specs have nothing to report, so that none is ever needed.

Almost all lines of specs have one form: a key or the sign of an item, and a value that ends on the line. Texts of such
lines are read here, each value once however many lines have it, in half of the time of PyYAML's events. A text with
any other line, or one that the parser would report something of, is left to the parser.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate, chain
from json import JSONDecoder
from typing import Any

from memtopo.language.document import Value
from memtopo.language.limits import DEEPEST, LARGEST_SCALAR, MOST_ENTRIES

_KEY = r"\w[\w.-]{0,99}+(?::\w[\w.-]{0,99}+)?+"
_LINE = re.compile(
    rf"^( *+)(?!#|\r?$)(- )?+(?:({_KEY}):(?=[ \r]|$) *+)?+(?:(\w[\w.-]{{0,99}}+)|(.*))$", re.ASCII | re.MULTILINE
)
"""Groups: indentation, sign of an item, key, and what follows: one word, or anything else. Comments are left out."""

_SIGN = r"[\w.$/%*+()-]"
_PLAIN = rf"(?:[\w.$/(]|-\w)(?:{_SIGN}|:(?=\w)| (?={_SIGN}))*+"
_QUOTED = r""""[ !#-&(-\[\]-~]*+"|'[ !#-&(-\[\]-~]*+'"""
_PAIRS = rf"{_KEY}: {_PLAIN}(?:, {_KEY}: {_PLAIN})*+"
_NESTED = rf"[\[{{](?: *+(?:{_PLAIN}|{_QUOTED}|[\[\]{{}},]|(?<! ):(?= )))*+(?<=[\]}}])"
_REST = re.compile(rf"(?:(?:({_PLAIN})|\{{ ?({_PAIRS}) ?\}}|({_QUOTED}|{_NESTED}))(?: +#.*| *)|#.*)?\r?", re.ASCII)
"""Groups: one text, the pairs of a mapping of texts, any other value; none of them for a comment."""

_TEXTS = re.compile(_QUOTED)

_SCALAR = re.compile(rf"({_PLAIN})|\"([^\"]*)\"|'([^']*)'", re.ASCII)

_LONGEST_KEY = 1000
"""Characters of a key for PyYAML, which takes a longer one for a value."""

_DEEPEST = DEEPEST // 2
"""Levels of lines, and of brackets on one line."""

_SHORT = 200
"""Characters of a line of which the value is kept for other texts."""

_NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}


class _Unusual(Exception):
    """Something that the parser reports, or has to look at."""


def values(text: str) -> dict[str, Value] | None:
    """Return the values of a text, or None for a text that the parser has to read."""
    if len(text) > MOST_ENTRIES and _has_more(text):
        return None
    try:
        return _Reader(text).document()
    except (_Unusual, ValueError, RecursionError):
        return None


def _has_more(text: str) -> bool:
    """Return true for more lines, or entries, than a spec may have entries; each entry has one of the signs."""
    return text.count("\n") > MOST_ENTRIES or sum(map(text.count, (":", ",", "[", "- "))) > MOST_ENTRIES


class _Known(dict[str, "Value | None"]):
    """Values by the rest of a line, None for a comment: most are repeated, and each is read once."""

    def __missing__(self, rest: str) -> Value | None:
        found = self[rest] = _of_any_text(rest) if len(rest) <= _SHORT else _value(rest)
        return found


def _value(rest: str) -> Value | None:
    """Value of the rest of a line, None for a comment. Nothing changes the values of a text."""
    if not (match := _REST.fullmatch(rest)):
        raise _Unusual
    plain, pairs, other = match.groups()
    if len(rest) > LARGEST_SCALAR and max(map(len, chain.from_iterable(_SCALAR.findall(rest)))) > LARGEST_SCALAR:
        raise _Unusual
    return _pairs(pairs) if pairs else _nested(other) if other else plain


_of_any_text = lru_cache(maxsize=1024)(_value)
"""Values of short lines that texts have alike: `{location: gpu0, size: 2MiB}`."""


class _Reader:
    """Reader of the lines of a text, of which those before `_next` are read."""

    def __init__(self, text: str) -> None:
        self._known = _Known()
        self._lines = _LINE.findall(text)
        self._next = 0

    def document(self) -> dict[str, Value] | None:
        """Values of all lines; None if they are no mapping."""
        root = self._below(-1, 0)
        return root if isinstance(root, dict) and self._next == len(self._lines) else None

    def _below(self, column: int, depth: int) -> Value:
        """Value of a key in a column that has none on its line."""
        if self._next == len(self._lines):
            return ""
        indentation, item, *_ = self._lines[self._next]
        inner = len(indentation)
        if inner < column or (inner == column and not item):
            return ""
        if depth == _DEEPEST:
            raise _Unusual
        return self._list(inner, depth + 1) if item else self._mapping(inner, depth + 1)

    def _mapping(self, column: int, depth: int) -> dict[str, Value]:
        lines, known = self._lines, self._known
        found: dict[str, Value] = {}
        while self._next < len(lines):
            indentation, item, key, word, rest = lines[self._next]
            if item or len(indentation) != column:
                break
            if key in found or not key:
                raise _Unusual
            self._next += 1
            value = word or known[rest]
            found[key] = self._below(column, depth) if value is None else value
        return found

    def _list(self, column: int, depth: int) -> list[Value]:
        lines, known = self._lines, self._known
        found: list[Value] = []
        while self._next < len(lines):
            indentation, item, key, word, rest = lines[self._next]
            if not item or len(indentation) != column:
                break
            if key:  # the first line of a mapping, behind the sign of the item
                lines[self._next] = f"{indentation}  ", "", key, word, rest
                found.append(self._below(column, depth))
                continue
            self._next += 1
            if (value := word or known[rest]) is None:
                raise _Unusual
            found.append(value)
        return found


def _pairs(text: str) -> dict[str, Value]:
    found: dict[str, Any] = dict(pair.split(": ") for pair in text.split(", "))
    if len(found) <= text.count(", "):
        raise _Unusual
    return found


def _nested(text: str) -> Value:
    """Value of a quoted text, or of a mapping or list in brackets, which is JSON once its texts are quoted alike."""
    brackets = text.count("[") + text.count("{")
    if brackets > _DEEPEST and max(accumulate(_NESTING.get(sign, 0) for sign in _TEXTS.sub("", text))) > _DEEPEST:
        raise _Unusual
    found: Value = _DECODER.decode(_SCALAR.sub(_quoted, text))
    return found


def _quoted(scalar: re.Match[str]) -> str:
    return f'"{scalar[scalar.lastindex or 0]}"'


def _distinct(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) < len(pairs) or "" in found or max(map(len, found), default=0) > _LONGEST_KEY:
        raise _Unusual
    return found


_DECODER = JSONDecoder(object_pairs_hook=_distinct)
