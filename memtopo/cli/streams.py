"""The process's own streams, made such that a reader who is gone or a full disk never ends the work halfway."""

from __future__ import annotations

import io
import os
import re
import select
import sys
from typing import Any, TextIO


class Streams:
    """Stdout and stderr from now on: what cannot be written is dropped, and `lost` tells why stdout's was.

    A reader who has read enough (`| head -1`) is no failure and never in `lost`. A stream that was closed before
    (`>&-`) is the null device: its number must not become that of a handle or an arena.
    """

    def __init__(self) -> None:
        _fill_closed()
        _forget_odd_sizes()
        self._results = _Dropping(1)
        sys.stdout = _text(self._results, sys.stdout, line_buffering=os.isatty(1))
        sys.stderr = _text(_Dropping(2), sys.stderr, line_buffering=True)

    def lost(self) -> OSError | None:
        """Write out what was said so far. Why some of the results are not where they should be, if they are not."""
        sys.stdout.flush()
        sys.stderr.flush()
        why = self._results.why
        return None if isinstance(why, BrokenPipeError) else why


class _Dropping(io.FileIO):
    """A file descriptor that takes everything: after the first failure nothing is written any more."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.why: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.why is None:
            try:
                return self._written(data)
            except OSError as error:
                self.why = error
        return len(memoryview(data).cast("B"))

    def _written(self, data: Any) -> int:
        # A pipe that another process made non-blocking answers nothing while it is full.
        while (count := super().write(data)) is None:
            select.select([], [self], [])
        return count


def _fill_closed() -> None:
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _forget_odd_sizes() -> None:
    """Not all who read these variables take what is no number for nothing."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch(r"[0-9]{1,6}", os.environ.get(name, "0")):
            del os.environ[name]


def _text(raw: io.FileIO, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    encoding = before.encoding if before else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=line_buffering
    )
