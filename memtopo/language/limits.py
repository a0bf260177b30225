"""Limits of a spec's text: its size, its depth, its characters, its parameters, and how many diagnostics it has."""

from __future__ import annotations

import re
from unicodedata import category, name

from memtopo.diagnostics.model import Diagnostic

LARGEST_FILE = 32 << 20
"""Bytes of one text."""

LARGEST_SCALAR = 64 << 10
"""Characters of one key or value."""

MOST_ENTRIES = 1_000_000
"""Entries of all mappings and lists together; with their keys, two million nodes."""

LARGEST_PARTS = 64
"""Named parts of one chunk, so that the description of an export fits into a packet."""

PARAMETERS = "params"
"""Key of the parameters at the top of a spec."""

MOST_PARAMETERS = 1000
"""Parameters of one spec."""

DEEPEST = 64
"""Levels of nested mappings and lists."""

MOST_DIAGNOSTICS = 1000
"""Diagnostics that are reported one by one."""


class ReadError(Exception):
    """Reading ends early; `diagnostic` is then the only diagnostic of the text."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class DiagnosticList:
    """The first diagnostics of a text, and the number of the following ones."""

    __slots__ = ("_kept", "_limit", "_omitted")

    def __init__(self, limit: int = MOST_DIAGNOSTICS) -> None:
        self._limit = limit
        self._kept: list[Diagnostic] = []
        self._omitted = 0

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep a diagnostic; once the list is full, only count it."""
        if len(self._kept) < self._limit:
            self._kept.append(diagnostic)
        else:
            self._omitted += 1

    def collected(self) -> tuple[Diagnostic, ...]:
        """All diagnostics that were kept; a note in the last one gives the number of the others."""
        if not self._omitted or not self._kept:
            return tuple(self._kept)
        *first, last = self._kept
        return (*first, last._replace(notes=(*last.notes, f"and {self._omitted} more like these")))


_NOT_IN_VALUES = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
_NAMES = {
    "\x00": "NULL",
    "\x07": "BELL",
    "\x08": "BACKSPACE",
    "\x0b": "LINE TABULATION",
    "\x0c": "FORM FEED",
    "\r": "CARRIAGE RETURN",
    "\x1b": "ESCAPE",
    "\x7f": "DELETE",
    "\x85": "NEXT LINE",
    "\ufeff": "BYTE ORDER MARK",
}
"""Names of the characters that have none in Unicode's table of names, or another one."""


def refused_character(value: str) -> str | None:
    r"""Name of the first character that is not allowed in a key or value; escapes such as "\e" can produce one."""
    match = None if value.isprintable() else re.search(_NOT_IN_VALUES, value)
    return character_name(match[0]) if match else None


def character_name(char: str) -> str:
    """Code point and Unicode name of a character: `U+0085 NEXT LINE`."""
    unnamed = {"Cc": "CONTROL CHARACTER", "Cs": "SURROGATE"}.get(category(char), "NONCHARACTER")
    return f"U+{ord(char):04X} {_NAMES.get(char) or name(char, unnamed)}"
