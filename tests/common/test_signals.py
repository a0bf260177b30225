"""Deferral of the signals that end a program."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from memtopo.common.signals import ENDING, deferred, received_signal, signal_wakeup


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def raise_deferred(*numbers: signal.Signals, error: Exception | None = None) -> None:
    """Raise signals, and then perhaps an error, while signals are deferred."""
    with deferred():
        for number in numbers:
            signal.raise_signal(number)
        if error:
            raise error


def test_a_deferred_signal_is_handled_after_the_code_inside() -> None:
    events: list[str] = []
    signal.signal(signal.SIGINT, lambda *_: events.append("handled"))
    with deferred():
        signal.raise_signal(signal.SIGINT)
        events.append("done")
    assert events == ["done", "handled"]


def test_every_deferred_signal_is_handled_once_even_if_a_handler_raises() -> None:
    received: list[int] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    with pytest.raises(KeyboardInterrupt):
        raise_deferred(signal.SIGINT, signal.SIGTERM, signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_a_deferred_interrupt_has_the_error_of_the_code_inside_as_its_context() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    error = KeyError("inside")
    with pytest.raises(KeyboardInterrupt) as raised:
        raise_deferred(signal.SIGINT, error=error)
    assert raised.value.__context__ is error


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with deferred():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_handler_that_raises_before_its_signal_is_deferred_leaves_the_others_as_they_were() -> None:
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGHUP, signal.default_int_handler)

    def raise_after_the_first(frame: FrameType, _event: str, _value: Any) -> Any:
        if frame.f_code is deferred.__enter__.__code__ and signal.getsignal(signal.SIGINT) is not handler:
            signal.raise_signal(signal.SIGHUP)
        return raise_after_the_first

    before = sys.gettrace()
    sys.settrace(raise_after_the_first)
    try:
        with pytest.raises(KeyboardInterrupt):
            raise_deferred()
    finally:
        sys.settrace(before)
    assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_defer_nothing() -> None:
    found: list[object] = []

    def inside() -> None:
        with deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_handlers_are_called_at_a_point_inside_once_and_the_rest_after_one_that_raises() -> None:
    events: list[object] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _frame: events.append(number))
    with deferred() as signals:
        signal.raise_signal(signal.SIGTERM)
        signals.handle()
        events.append("inside")
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signals.handle()
        events.append("interrupted")
    assert events == [signal.SIGTERM, "inside", "interrupted", signal.SIGTERM]


def test_the_first_of_several_signals_is_the_one_that_was_received() -> None:
    """It is that of the exit status, however often others come later."""
    received = received_signal(signal.SIGTERM, signal.SIGHUP)
    assert received() == 0
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
        signal.raise_signal(number)
        assert received() == signal.SIGHUP


def test_a_signal_makes_the_socket_of_the_innermost_block_readable() -> None:
    """After the block, signals are told to the socket of the block around it again."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    with signal_wakeup() as outer:
        assert outer
        with signal_wakeup() as inner:
            assert inner
            signal.raise_signal(signal.SIGTERM)
            assert inner.recv(8) == bytes([signal.SIGTERM])
            with pytest.raises(BlockingIOError):
                outer.recv(8)
        signal.raise_signal(signal.SIGTERM)
        assert outer.recv(8) == bytes([signal.SIGTERM])
