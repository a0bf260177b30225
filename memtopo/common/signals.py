"""Signals that end a program, and their deferral."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request the end of a program."""

TERMINAL = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to a process and its children: Ctrl-C, and the end of the session."""


def received_signal(*numbers: int) -> Callable[[], int]:
    """Handle some signals from now on; return a function that returns the number of the first one received, or 0."""
    received: list[int] = []
    for number in numbers:
        signal.signal(number, lambda number, _frame: received.append(number))
    return lambda: received[0] if received else 0


class deferred:  # noqa: N801  # used like a function
    """Context manager that calls the handlers of ending signals, such as that of KeyboardInterrupt, only at its end.

    `handle` calls them earlier, at points where the code inside may be left.
    Handlers that are no Python functions run no code here, and threads other than the main one run no handlers; both
    are left alone. A class takes half the time of a generator.
    """

    __slots__ = ("_before", "_received")

    def __init__(self) -> None:
        self._received: list[int] = []
        self._before: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        if threading.get_ident() != threading.main_thread().ident:
            return self
        try:
            for number in ENDING:
                if callable(handler := signal.getsignal(number)):
                    self._before.append((number, handler))
                    signal.signal(number, self._record)
        except BaseException:  # the handler of a signal that is not deferred yet
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def handle(self) -> None:
        """Call the handlers of the signals received until now; after one that raises, the others are called later."""
        while self._received:
            number = self._received.pop(0)
            dict(self._before)[number](number, sys._getframe(1))  # noqa: SLF001 the frame that a handler is called with

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if number not in self._received:
            self._received.append(number)

    def _restore(self) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        received, self._received = self._received, []
        _raise_each(received)


def _raise_each(numbers: list[int]) -> None:
    """Raise every signal, even if the handler of one raises an exception."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise_each(numbers[1:])


@contextmanager
def signal_wakeup() -> Iterator[socket.socket | None]:
    """Yield a socket that every signal makes readable; None outside of the main thread, where Python has no such."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)  # noqa: FBT003 the signature is the library's
        theirs.setblocking(False)  # noqa: FBT003 as above
        try:
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        except ValueError:
            yield None
            return
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)
