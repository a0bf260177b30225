"""Fonts, sizes of type, and estimated widths of text in fonts that are not known."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memtopo.common.text import display_width, printable

MONO_FONTS = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
SANS_FONTS = 'system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,"DejaVu Sans",sans-serif'

NAME, BODY, SMALL, TITLE = 13.5, 12.0, 11.0, 22.0
"""Sizes of type in pixels: names, text below them, captions, and the title."""

MONO = 0.61
"""Width of a column relative to the size of type, in the widest of the usual monospaced fonts."""
SANS = 0.66
"""Width of an average letter in a bold sans-serif font, likewise."""
CAPITALS = 0.87
"""Width of a spaced capital, likewise."""

_BREAKS = re.compile(r"(?<![\d×])(?<!\bat) (?!×)")  # not within `16 × 2 MiB` or `at 64 MiB`


def width(text: str, size: float, per: float = MONO) -> float:
    """Pixels that a text takes in a size of type; rather too many than too few."""
    return display_width(printable(text)) * size * per


def fitting(text: str, room: float, size: float, per: float = MONO) -> str:
    """A text shortened to a width in the middle: the ends of names differ most."""
    shown = printable(text)
    if width(shown, size, per) <= room:
        return shown
    columns = max(3, int(room / (size * per)))
    start = _first(shown, (columns - 1) // 2)
    return f"{start.rstrip()}…{_first(shown[::-1], columns - 1 - display_width(start))[::-1].lstrip()}"


def packed(parts: Sequence[str], room: float, size: float, glue: str = " · ") -> list[str]:
    """Parts in as few lines as possible; a part that is longer than a line is broken at its spaces."""
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


def _first(text: str, columns: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += display_width(char)
        if used > columns:
            return text[:index]
    return text
