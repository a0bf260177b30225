"""Signals: they request a stop, and interrupt no step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from memtopo.cli.process import Stopper
from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.run import apply
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
SPEC = """
ranges: {a: {size: 32MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 16}}
map: {a: [page]}
access: {a: {gpu0: rw}}
"""


class Signalling:
    """A driver that raises a signal in the middle of the n-th of its calls, and again in every later one."""

    def __init__(self, driver: SimDriver, number: int, at: int) -> None:
        self._driver, self._number, self._at = driver, number, at
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._driver, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls >= self._at:
                signal.raise_signal(self._number)
            return method(*args, **kwargs)

        return call


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("at", [1, 2, 5, 20, 37, 60, 110])
def test_a_signal_during_the_build_undoes_everything(number: signal.Signals, at: int) -> None:
    """Repeated signals during the teardown change nothing."""
    machine = invented(1)
    driver = SimDriver(machine)
    driver.init()
    signalling = Signalling(driver, number, at)
    ledger = Ledger(signalling)
    with Stopper() as stopper:
        report = apply.apply(run_request(SPEC, machine), ledger, stop=stopper.signal)
    driver.close()
    assert (report.outcome, report.exit_code) == ("interrupted", 128 + number)
    assert ledger.empty
    assert signalling.calls > at


def test_a_signal_during_the_teardown_does_not_change_the_outcome() -> None:
    machine = invented(1)
    driver = SimDriver(machine)
    driver.init()
    quiet = Signalling(driver, signal.SIGINT, 10**9)
    apply.apply(run_request(SPEC, machine), Ledger(quiet))
    late = Signalling(driver, signal.SIGINT, quiet.calls - 10)
    ledger = Ledger(late)
    with Stopper() as stopper:
        report = apply.apply(run_request(SPEC, machine), ledger, stop=stopper.signal)
    driver.close()
    assert report.exit_code == 0
    assert ledger.empty


def test_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with Stopper():
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_sighup_stays_ignored_if_nohup_ignores_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stopper() as stopper:
            signal.raise_signal(signal.SIGHUP)
        assert (stopper.signal(), signal.getsignal(signal.SIGHUP)) == (0, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)
