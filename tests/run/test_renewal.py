"""Renewal of memory for another writer: it is created anew, or stays away until it is renewed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.executor import StepFailed
from memtopo.run.apply import Run
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

SPEC = """
ranges: {a: {size: 4MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 2}}
map: {a: [page]}
access: {a: {gpu0: rw}}
"""
PAGE = frozenset({("chunk", "page.0")})


@contextmanager
def running() -> Iterator[tuple[Run, Failing]]:
    machine = invented(1)
    driver = SimDriver(machine)
    driver.init()
    failing = Failing(driver)
    run = Run(run_request(SPEC, machine), Ledger(failing))
    run.build()
    try:
        yield run, failing
    finally:
        failing.at = 0
        run.take_down()
        assert run.ledger.empty
        driver.close()


def calls() -> range:
    with running() as (run, failing):
        first = failing.calls
        run.renew(PAGE)
        return range(1, failing.calls - first + 1)


def test_a_failing_call_of_a_renewal_leaves_all_memory_or_all_but_the_renewed() -> None:
    """The calls of its check are among them."""
    for at in calls():
        with running() as (run, failing):
            failing.at = failing.calls + at
            with pytest.raises(StepFailed):
                run.renew(PAGE)
            assert run.absent in (frozenset(), PAGE)
            assert ("page.0" in run.execution.layout.chunks) is (not run.absent), at
            assert not run.recheck().different
            assert not run.renew(PAGE).different
            assert run.whole
