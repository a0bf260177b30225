"""Renewal of memory for another writer: it is created anew, or stays away until it is renewed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.executor import StepFailed
from memtopo.run.layout_plans import Absent
from tests.helpers.conducted import Conducted, conducted
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

SPEC = """
ranges: {a: {size: 4MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 2}}
map: {a: [page]}
access: {a: {gpu0: rw}}
states: {idle: {drop: [page.1]}}
"""
PAGE, OTHER = (frozenset({("", ("chunk", label))}) for label in ("page.0", "page.1"))


@contextmanager
def running() -> Iterator[tuple[Conducted, Failing]]:
    machine = invented(1)
    driver = SimDriver(machine)
    driver.init()
    failing = Failing(driver)
    made = conducted(run_request(SPEC, machine), Ledger(failing))
    made.build()
    try:
        yield made, failing
    finally:
        failing.at = 0
        made.run.take_down()
        assert made.run.ledger.empty
        driver.close()


def calls() -> range:
    with running() as (made, failing):
        first = failing.calls
        made.recreate(PAGE)
        return range(1, failing.calls - first + 1)


def test_a_failing_call_of_a_renewal_leaves_all_memory_or_all_but_the_renewed() -> None:
    """The calls of its check are among them."""
    for at in calls():
        with running() as (made, failing):
            failing.at = failing.calls + at
            with pytest.raises(StepFailed):
                made.recreate(PAGE)
            assert made.absent in (frozenset(), PAGE)
            assert ("page.0" in made.run.execution.layout.chunks) is (not made.absent), at
            assert not made.recheck().different
            assert not made.recreate(PAGE).different
            assert made.whole


def test_what_is_taken_away_in_a_state_leaves_the_layout_in_that_state() -> None:
    with running() as (made, _):
        made.switch("idle")
        made.set_absent(PAGE)
        assert (made.state, made.absent) == ("idle", PAGE)
        assert not made.run.execution.layout.chunks


def test_programs_of_a_users_processes_go_on_after_a_renewal_and_not_in_its_middle() -> None:
    inside, absent = [0], list[Absent]()

    @contextmanager
    def attended(*_: str) -> Iterator[None]:
        inside[0] += 1
        yield
        inside[0] -= 1
        if not inside[0]:
            absent.append(made.absent)

    with running() as (made, _):
        made.attended = attended  # type: ignore[method-assign, assignment]
        made.recreate(PAGE)
    assert absent == [frozenset()]


def test_a_renewal_leaves_away_what_was_absent_before() -> None:
    with running() as (made, _):
        made.set_absent(OTHER)
        assert not made.recreate(PAGE).different
        assert made.absent == OTHER
        assert "page.1" not in made.run.execution.layout.chunks


def test_a_switch_leaves_away_what_was_absent_before() -> None:
    with running() as (made, _):
        made.set_absent(PAGE)
        for state in ("idle", "awake"):
            assert not made.switch(state).different
            assert (made.state, made.absent) == (state, PAGE)
            assert "page.0" not in made.run.execution.layout.chunks
        made.set_absent(frozenset())
        assert made.whole
        assert not made.recheck().different
