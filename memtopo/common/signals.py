"""Signals that end a program, and their deferral."""

from __future__ import annotations

import _signal as signals
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request the end of a program."""

TERMINAL = (signal.SIGINT, signal.SIGHUP)
"""Those that a terminal sends to a process and its children: Ctrl-C, and the end of the session."""


# The functions of `_signal` are those of `signal` without the conversion to enums and back, which takes ten times as
# long: each change of an elastic range defers signals.
_signal: Callable[[int, Any], Any] = getattr(signals, "signal", signal.signal)
_getsignal: Callable[[int], Any] = getattr(signals, "getsignal", signal.getsignal)


@contextmanager
def deferred() -> Iterator[None]:
    """Call the handlers of ending signals, such as that of KeyboardInterrupt, only after the code inside.

    Handlers that are no Python functions run no code here, and threads other than the main one run no handlers; both
    are left alone.
    """
    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        if number not in received:
            received.append(number)

    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            before = {number: handler for number in ENDING if callable(handler := _getsignal(number))}
        for each in before:
            _signal(each, record)
        yield
    finally:
        for each, handler in before.items():
            _signal(each, handler)
        _raise_each(received)


def _raise_each(numbers: list[int]) -> None:
    """Raise every signal, even if the handler of one raises an exception."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise_each(numbers[1:])
