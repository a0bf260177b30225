"""Plain text output without rich, whose import alone takes 60 ms: lines, errors, and properties of a stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from memtopo.common.errors import MemtopoError
from memtopo.common.text import output_line, printable

DEFAULT_WIDTH = 80
NARROWEST, WIDEST = 20, 1000
WIDEST_PROSE = 100

_STYLES = {
    "error": "1;31", "warning": "1;33", "note": "1;34", "help": "1;36", "hint": "1;36", "gutter": "34", "strong": "1",
}  # fmt: skip


def colour(stream: TextIO) -> bool:
    """Return True if a stream gets colour: not with NO_COLOR, always with FORCE_COLOR, else if it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width(stream: TextIO) -> int:
    """Columns of a stream: COLUMNS if it is set, else the terminal's, else 80; at least 20 and at most 1,000."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns[:6]):
        return min(max(int(columns[:6]), NARROWEST), WIDEST)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH, NARROWEST)
    except (OSError, ValueError):
        return DEFAULT_WIDTH


def paint(text: str, style: str, *, colour: bool) -> str:
    """Style a text with ANSI escapes; unchanged without colour."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colour and text else text


def print_error(error: MemtopoError, stream: TextIO | None = None) -> None:
    """Write `memtopo: error: …` to stderr, and `memtopo: hint: …` if the error has a hint."""
    stream = stream or sys.stderr
    _print_message("error", error.message, stream)
    print_lines([f"  {line}" for line in error.details], stream)
    if error.hint:
        _print_message("hint", error.hint, stream)


def print_message(text: str, stream: TextIO | None = None) -> None:
    """Write `memtopo: …` to stderr."""
    print_lines([f"memtopo: {text}"], stream or sys.stderr)


def print_lines(lines: Iterable[str], stream: TextIO | None = None, *, styled: bool = False) -> None:
    """Write lines of text to stdout, each as `output_line` returns it."""
    print_document((output_line(line, styled=styled) for line in lines), stream)


def print_document(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Write the lines of a document as they are to stdout; characters that its encoding lacks are escaped."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    for line in lines:  # one at a time: a record has 64 MiB
        stream.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))


def _print_message(kind: str, text: str, stream: TextIO) -> None:
    line = f"memtopo: {paint(f'{kind}:', kind, colour=colour(stream))} {printable(text)}"
    print_lines([line], stream, styled=True)
