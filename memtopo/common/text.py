"""Text for display: escapes, width in terminal columns, enumerations, the nearest known word, names of signals."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from unicodedata import category, east_asian_width

_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
# `::` after blanks and colours, or `##[`, `##vso[`, `##teamcity[` anywhere, without the last `:` or the second `#`.
_CI_COMMAND = r"^((?:\s|\x1b\[[0-9;]*m)*:):|##(?=\w*\[)"
_STYLE = r"(\x1b\[[0-9;]*m)"
_CLEARLY = 0.2
"""Difference in similarity, of 1, by which a word is clearly more similar than another one."""
_LONGEST = 5000
"""Characters of a message: a path has at most 4096."""
_NO_WIDTH = {"Mn", "Me", "Cf", "Cc"}


def printable(text: str) -> str:
    r"""Escape characters that are not visible as themselves: `\x1b`, `\u202e`.

    These are control, bidirectional and other format characters, unusual spaces, surrogates, private and unassigned
    characters.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def output_line(line: str, *, styled: bool = False) -> str:
    r"""Escape a line of text: every line of a command's output or log passes here.

    No text in it ends the line or controls a terminal, nor commands a CI runner: GitHub's executes `::name` at the
    start of a line and `##[name]` anywhere, in stdout and stderr; the agent of Azure Pipelines `##vso[name]`, TeamCity
    `##teamcity[name]`. They become `:\x3a` and `#\x23[`. ANSI styles stay in a `styled` line, whose texts were escaped
    before.
    """
    if not line.isprintable():
        parts = re.split(_STYLE, line) if styled else [line]
        line = "".join(part if index % 2 else printable(part) for index, part in enumerate(parts))
    if "::" not in line and "##" not in line:
        return line
    return re.sub(_CI_COMMAND, lambda found: f"{found[1]}\\x3a" if found[1] else "#\\x23", line)


def display_width(text: str) -> int:
    """Return the width of a text in terminal columns; wide characters take two, combining characters none."""
    if text.isascii():
        return len(text)
    width = 0
    for char in text:
        # The vowels and finals of conjoining Hangul are drawn into the syllable before them.
        if category(char) not in _NO_WIDTH and not "\u1160" <= char <= "\u11ff":
            width += 2 if east_asian_width(char) in "WF" else 1
    return width


def enumerated(words: Iterable[str], conjunction: str = "or") -> str:
    """Return words as in a sentence: `a chunk, a buffer or an event`."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def plural(count: int, noun: str) -> str:
    """`1 error`, `3,000 errors`, `2 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending * (count != 1)}"


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" * (len(names) > most)
    return f"{', '.join(names[:most])}{more}"


def first_words(words: Sequence[str], most: int) -> list[str]:
    """Return the first words, and the number of the others as one more: `a`, `b`, `3 more`."""
    return [*words[:most], *([f"{len(words) - most:,} more"] if len(words) > most else [])]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to `word`, if one is similar enough, and no other one as similar."""
    candidates = list(dict.fromkeys(known))
    lower = word.lower()
    if same := [name for name in candidates if name.lower() == lower]:
        return same[0]
    same_letters = [name for name in candidates if len(name) == len(word) and sorted(name.lower()) == sorted(lower)]
    if len(same_letters) == 1:
        return same_letters[0]
    longer = [name for name in candidates if len(word) > 1 and name.lower().startswith(lower)]
    if len(longer) > 1:
        return None
    from difflib import SequenceMatcher, get_close_matches  # noqa: PLC0415 slow to import, and needed for errors only

    near = longer or get_close_matches(word[:64], candidates, n=2)
    alike = {SequenceMatcher(None, each, word[:64]).ratio() for each in near}
    if len(alike) < len(near):
        return None
    if near:
        return near[0]
    related = [name for name in candidates if len(name) > 1 and lower.startswith(name.lower())]  # `kv` for `kvcache`
    return related[0] if len(related) == 1 and len(word) > 1 else None


def only_near(word: str, known: Iterable[str], *, sure: float = 0.7) -> str | None:
    """Return the known word that `word` was meant to be; None if several are similar, or none by `sure` of 1."""
    candidates = list(known)
    if same := [name for name in candidates if name.lower() == word.lower()]:
        return same[0] if len(same) == 1 else None
    from difflib import SequenceMatcher, get_close_matches  # noqa: PLC0415 as above

    near = get_close_matches(word[:64], candidates, n=2)
    best, second = ([SequenceMatcher(None, each, word).ratio() for each in near] + [0.0, 0.0])[:2]
    return near[0] if best >= max(sure, second + _CLEARLY) else None


def signal_name(number: int) -> str:
    """Name of a signal, such as `SIGSEGV`; `signal 40` if it has none, such as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending(status: int) -> str:
    """How a process ended by its status, which is less than 0 for a signal: `was killed by SIGSEGV`."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def bounded(text: str) -> str:
    """Return a text of an error without its middle if it is longer than any path: it repeats what a user has given."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 + 1 :]}"


def qualified(label: str, name: str) -> str:
    """Return the name of an entry among those of all processes, as `server.weights`."""
    return f"{label}.{name}" if label else name


def process_name(pid: int | None) -> str:
    """Name of another process, such as `process 4711`; one of another pid namespace has no number, or 0."""
    return f"process {pid}" if pid else "a process of another pid namespace"


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char <= "\xff":
        return f"\\x{ord(char):02x}"
    return f"\\u{ord(char):04x}" if char <= "\uffff" else f"\\U{ord(char):08x}"


def numbered(label: str) -> tuple[str, int | None]:
    """Name of an entry and the number of one of its objects: `page.3` is number 3 of `page`.

    A label that does not end in a number has none: `page`, and `page.3@host:0`, an area for offloaded bytes.
    """
    entry, _, number = label.rpartition(".")
    return (entry, int(number)) if entry and number.isdecimal() else (label, None)
