"""The process: its arguments, signals and standard streams.

SIGINT, SIGTERM and SIGHUP set a flag, which is read between steps: an exception raised by a signal handler could lose
a handle.
Errors of stdout and stderr are deferred, so that a closed pipe or a full disk does not stop the work.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TextIO

from memtopo.common.errors import Exit, MemtopoError, signal_status
from memtopo.common.signals import ENDING

if TYPE_CHECKING:  # imported by the commands that load a spec
    from memtopo.session.composition import Composition

REPORT_VARIABLES = {"apply": "MEMTOPO_APPLY_REPORT", "probe": "MEMTOPO_PROBE_REPORT"}
"""Variables of `--report` by command."""

_PATIENCE = 5
"""Seconds that a reader has to read on once a signal has ended the work."""


class RefusedSpec(MemtopoError):
    """An invalid spec, whose diagnostics are printed in place of an error."""

    exit_code = Exit.INVALID

    def __init__(self, composition: Composition) -> None:
        super().__init__(f"{composition.document.name} is invalid")
        self.composition = composition


class Interrupted(MemtopoError):
    """The command was interrupted by a signal."""

    def __init__(self, number: int = signal.SIGINT, hint: str | None = None) -> None:
        super().__init__("interrupted", hint=hint, exit_code=signal_status(number))


class Stopper:
    """Records the first signal while entered; later ones have no effect, so that they cannot break a teardown.

    The former handlers are restored on exit; with `ending`, only if no signal was recorded, so that none replaces the
    exit status of the process. SIGHUP remains ignored if it is, as by `nohup`.
    """

    def __init__(self, *, ending: bool = False) -> None:
        self._ending = ending
        self._signal = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        ignored = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else []
        self._before = {number: signal.signal(number, self._record) for number in ENDING if number not in ignored}
        return self

    def __exit__(self, *_: object) -> None:
        if not (self._ending and self._signal):
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def signal(self) -> int:
        """Number of the first signal, or 0."""
        return self._signal

    @staticmethod
    def stopped() -> bool:
        """Return whether the signals of this process are recorded, and one was."""
        owner = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        return isinstance(owner, Stopper) and owner.signal() > 0

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._signal = self._signal or number


class StandardStreams:
    """Replaces stdout and stderr; output that cannot be written is dropped, and `flush` returns the error of stdout.

    A closed pipe (`| head -1`) is not an error. A stream that was closed from the start (`>&-`) becomes the null
    device, so that its number is not reused for a handle or an arena.
    """

    def __init__(self) -> None:
        for fd in (0, 1, 2):
            try:
                os.fstat(fd)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        for name in ("COLUMNS", "LINES"):  # some readers do not handle what is no number
            if not re.fullmatch(r"[0-9]{1,6}", os.environ.get(name, "0")):
                del os.environ[name]
        self._results = _Dropping(1)
        sys.stdout = _text(self._results, sys.stdout, line_buffering=os.isatty(1))
        sys.stderr = _text(_Dropping(2), sys.stderr, line_buffering=True)

    def flush(self) -> OSError | None:
        """Flush both streams; return the first error of stdout, unless it is a closed pipe."""
        sys.stdout.flush()
        sys.stderr.flush()
        error = self._results.error
        return None if isinstance(error, BrokenPipeError) else error

    def end(self) -> None:
        """Flush both streams before the process ends, in which the interpreter takes the handlers of signals away."""
        self.flush()
        if Stopper.stopped():
            for number in ENDING:
                signal.signal(number, signal.SIG_IGN)


class _Dropping(io.FileIO):
    """A file descriptor that drops all data after the first error."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int:
        view, written = memoryview(data).cast("B"), None
        try:
            # Writing to a full pipe that another process made non-blocking returns None.
            while self.error is None and written is None:
                poll, waited = select.poll(), 0
                poll.register(self, select.POLLOUT)
                while not poll.poll(1000):  # until so much can be written at once
                    waited += Stopper.stopped()
                    if waited >= _PATIENCE:
                        raise TimeoutError(errno.ETIMEDOUT, "their reader does not read")
                written = super().write(view[: select.PIPE_BUF])
        except OSError as error:
            self.error = error
        return len(view) if written is None else written


def _text(raw: io.FileIO, before: TextIO | None, *, line_buffering: bool) -> TextIO:
    encoding = before.encoding if before else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=line_buffering
    )


def option_values(words: Sequence[str], *flags: str) -> list[str]:
    """Return the values of an option, in order, as words after its flags or behind `=`: `--format json`, `-mlocal`."""
    found = []
    for word, after in pairwise([*words, ""]):
        for flag in flags:
            if word == flag:
                found.append(after)
            elif word.startswith(flag) and (word[len(flag)] == "=" or not flag.startswith("--")):
                found.append(word[len(flag) :].removeprefix("="))
    return found


def applies_here(words: Sequence[str]) -> bool:
    """Return true if a command line applies a spec to the GPUs of this machine, which is the default."""
    machines = option_values(words, "--machine", "-m") or [os.environ.get("MEMTOPO_MACHINE") or "local"]
    return words[:1] == ["apply"] and machines[-1] == "local" and not {"-h", "--help"} & set(words)
