"""Text for people: what cannot be seen is escaped, what is seen is measured in columns, what was meant is guessed.

And signals have their names.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from unicodedata import category, east_asian_width

_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_NO_WIDTH = {"Mn", "Me", "Cf", "Cc"}


def printable(text: str) -> str:
    r"""Escape whatever is not seen as itself: `\x1b`, `\u202e`.

    Controls, bidirectional and other format characters, unusual spaces, surrogates, private and unassigned characters.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def display_width(text: str) -> int:
    """How many columns of a terminal a text takes; wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_width(char) for char in text)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, if one is near."""
    candidates = list(known)
    if same := [name for name in candidates if name.lower() == word.lower()]:
        return same[0]
    from difflib import get_close_matches  # noqa: PLC0415 slow to import, and only faults need it

    near = get_close_matches(word[:64], candidates, n=1)
    return near[0] if near else None


def signal_name(number: int) -> str:
    """`SIGSEGV`; `signal 40` where it has no name, as most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char <= "\xff":
        return f"\\x{ord(char):02x}"
    return f"\\u{ord(char):04x}" if char <= "\uffff" else f"\\U{ord(char):08x}"


def _width(char: str) -> int:
    # The vowels and finals of conjoining Hangul are drawn into the syllable before them.
    if category(char) in _NO_WIDTH or "\u1160" <= char <= "\u11ff":
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
