"""Stdout and stderr of the process, with errors deferred: a closed pipe or a full disk does not stop the work."""

from __future__ import annotations

import io
import os
import re
import select
import sys
from typing import Any, TextIO


class Streams:
    """Replaces stdout and stderr; output that cannot be written is dropped, and `flush` returns the error of stdout.

    A closed pipe (`| head -1`) is not an error. A stream that was closed from the start (`>&-`) becomes the null
    device, so that its number is not reused for a handle or an arena.
    """

    def __init__(self) -> None:
        _fill_closed()
        _unset_invalid_sizes()
        self._results = _Dropping(1)
        sys.stdout = _text(self._results, sys.stdout, line_buffering=os.isatty(1))
        sys.stderr = _text(_Dropping(2), sys.stderr, line_buffering=True)

    def flush(self) -> OSError | None:
        """Flush both streams; return the first error of stdout, unless it is a closed pipe."""
        sys.stdout.flush()
        sys.stderr.flush()
        error = self._results.error
        return None if isinstance(error, BrokenPipeError) else error


class _Dropping(io.FileIO):
    """A file descriptor that drops all data after the first error."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.error is None:
            try:
                return self._write(data)
            except OSError as error:
                self.error = error
        return len(memoryview(data).cast("B"))

    def _write(self, data: Any) -> int:
        # Writing to a full pipe that another process made non-blocking returns None.
        while (count := super().write(data)) is None:
            select.select([], [self], [])
        return count


def _fill_closed() -> None:
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def _unset_invalid_sizes() -> None:
    """Unset COLUMNS and LINES if they are no numbers, which some readers of them do not handle."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch(r"[0-9]{1,6}", os.environ.get(name, "0")):
            del os.environ[name]


def _text(raw: io.FileIO, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    encoding = before.encoding if before else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=line_buffering
    )
