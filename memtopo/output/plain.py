"""Messages without rich, which alone costs 60 ms: errors, and what a stream can show."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from memtopo.common.errors import MemtopoError
from memtopo.common.text import printable

DEFAULT_WIDTH = 80
NARROWEST = 20

_STYLES = {
    "error": "1;31", "warning": "1;33", "note": "1;34", "help": "1;36", "hint": "1;36", "gutter": "34", "strong": "1",
}  # fmt: skip


def colour(stream: TextIO) -> bool:
    """Whether a stream gets colour: NO_COLOR forbids it, FORCE_COLOR wants it, otherwise only a terminal does."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width(stream: TextIO) -> int:
    """The columns of a stream: COLUMNS where it is set, else the terminal's, else 80."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdecimal() and int(told[:6]):
        return max(int(told[:6]), NARROWEST)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH, NARROWEST)
    except (OSError, ValueError):
        return DEFAULT_WIDTH


def paint(text: str, style: str, *, colour: bool) -> str:
    """A text in one of the few styles of messages; unchanged without colour."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colour and text else text


def print_error(error: MemtopoError, stream: TextIO | None = None) -> None:
    """Write `memtopo: error: …` and, where there is one, `memtopo: hint: …` to stderr."""
    stream = stream or sys.stderr
    _say("error", error.message, stream)
    print_lines([f"  {printable(line)}" for line in error.details], stream)
    if error.hint:
        _say("hint", error.hint, stream)


def print_lines(lines: list[str], stream: TextIO | None = None) -> None:
    """Write finished lines to stdout; what its encoding lacks is escaped instead of being an error."""
    stream = stream or sys.stdout
    text = "".join(f"{line}\n" for line in lines)
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _say(kind: str, text: str, stream: TextIO) -> None:
    print_lines([f"memtopo: {paint(f'{kind}:', kind, colour=colour(stream))} {printable(text)}"], stream)
