"""How much room a text takes, said of fonts that are not known: a little too much rather than too little."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memtopo.common.text import display_width, printable

MONO_FONTS = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
SANS_FONTS = 'system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,"DejaVu Sans",sans-serif'

NAME, WORDS, SMALL, TITLE = 13.5, 12.0, 11.0, 22.0
"""Sizes of type, in pixels: a name, what is said of it, a caption, and the title of all."""

_BREAKS = re.compile(r"(?<![\d×])(?<!\bat) (?!×)")  # not within `16 × 2 MiB` or `at 64 MiB`

MONO = 0.61  # of its size, for a column of the widest of the usual monospaced fonts
SANS = 0.66  # likewise for an average letter, in bold
CAPITALS = 0.87  # likewise for capitals, which stand apart


def width(told: str, size: float, per: float = MONO) -> float:
    """Pixels that a text takes in a size of type."""
    return display_width(printable(told)) * size * per


def fitting(told: str, room: float, size: float, per: float = MONO) -> str:
    """As much of a text as has room, from its start and its end: a name's end tells most."""
    shown = printable(told)
    if width(shown, size, per) <= room:
        return shown
    columns = max(3, int(room / (size * per)))
    start = _first(shown, (columns - 1) // 2)
    return f"{start.rstrip()}…{_first(shown[::-1], columns - 1 - display_width(start))[::-1].lstrip()}"


def packed(parts: Sequence[str], room: float, size: float, glue: str = " · ") -> list[str]:
    """Parts in as few lines as have room for them; a part that is too long for a line is broken at its spaces."""
    lines: list[str] = []
    for part in parts:
        if lines and width(lines[-1] + glue + part, size) <= room:
            lines[-1] += glue + part
        elif width(part, size) <= room:
            lines.append(part)
        else:
            lines += _broken(_BREAKS.split(part), room, size)
    return lines


def _broken(words: Sequence[str], room: float, size: float) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and width(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        elif lines[-1]:
            lines.append(fitting(word, room, size))
        else:
            lines[-1] = fitting(word, room, size)
    return lines


def _first(told: str, columns: int) -> str:
    taken = 0
    for index, char in enumerate(told):
        taken += display_width(char)
        if taken > columns:
            return told[:index]
    return told
