"""Deferral of the signals that end a program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from memtopo.common.signals import ENDING, deferred


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


def test_other_threads_defer_nothing() -> None:
    found: list[object] = []

    def inside() -> None:
        with deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
