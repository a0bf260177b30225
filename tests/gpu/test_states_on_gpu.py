"""States on a real GPU: rehearsals, a thousand switches, and a hundred calls of switches that fail."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

import memtopo
from memtopo import planner
from memtopo.driver.ledger import Ledger
from memtopo.drivers.target import Target
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.layout import current
from memtopo.language import read_file
from memtopo.language.names import AWAKE
from memtopo.plans.report import Check
from memtopo.rules import Validated, validate
from memtopo.run import apply
from memtopo.run.verification.fingerprints import Fingerprints
from tests.helpers.conducted import make_transition
from tests.helpers.failing_driver import Failing
from tests.helpers.specs import ROOT, request_of

pytestmark = pytest.mark.gpu
SPECS = ("sleep-mode", "memory-saver")
SLEEP = ROOT / "specs/sleep-mode.yaml"
POINTS = 100


def validated(name: str, local: Target) -> Validated:
    found = validate(read_file(ROOT / f"specs/{name}.yaml"), local.machine)
    assert found.geometry is not None, found.diagnostics
    return found


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("check", ["fast", "full"])
def test_states_are_rehearsed_with_their_bytes(local: Target, check: Check, name: str) -> None:
    request = request_of(validated(name, local).document, local, check=check, machine_facts=local.machine)
    ledger = Ledger(local.open())
    report = apply.apply(replace(request, rehearse=True), ledger)
    assert ledger.empty
    assert report.outcome == "ok", report


def test_a_thousand_switches_leave_bytes_ledger_descriptors_and_free_memory_unchanged() -> None:
    with memtopo.applied(SLEEP) as layout:
        session = layout._session
        driver, context = session.driver, session.layout.contexts[0]
        base = layout.address("weights")
        with current(driver, context):
            driver.memset_d8(base, 0x5A, 64 << 20)
        found = []
        for n in range(501):
            layout.switch("level-1")
            layout.switch("awake")
            if n % 100 == 0:
                with current(driver, context):
                    assert set(driver.memcpy_dtoh(base, 64 << 20)) == {0x5A}
                    counts = session.run.ledger.counts()
                    found.append((driver.mem_get_info()[0], counts, len(os.listdir("/proc/self/fd"))))
        assert found[0] == found[-1]


@pytest.mark.parametrize("name", SPECS)
def test_a_failing_call_restores_the_state_before_with_its_bytes(local: Target, name: str) -> None:
    """At 100 calls of the switches to all states and back, in one layout."""
    geometry = validated(name, local).geometry
    assert geometry
    plan = planner.plan(geometry, local.machine)
    states = {AWAKE: plan, **planner.plan_states(plan, geometry)}
    driver = Failing(local.open())
    execution = Execution(plan, ledger := Ledger(driver))
    execution.build()
    switches = [pair for state in states if state != AWAKE for pair in ((AWAKE, state), (state, AWAKE))]
    failed = 0
    for one, other in switches:
        make_transition(execution, states[one])
        before = driver.calls
        make_transition(execution, states[other])
        calls = driver.calls - before
        make_transition(execution, states[one])
        step = max(1, calls * len(switches) // POINTS)
        for at in range(1, calls + 1, step):
            taken = Fingerprints.take(execution, states[one])
            counts = ledger.counts()
            driver.at = driver.calls + at
            with pytest.raises(StepFailed):
                make_transition(execution, states[other])
            driver.at = 0
            failed += 1
            assert ledger.counts() == counts
            assert not [each for each in execution.check() if each.expected != each.observed]
            if one != AWAKE:
                assert not [each for each in taken.compare() if each.expected != each.observed]
    assert failed >= POINTS
    assert not execution.take_down().leaks
    assert ledger.empty
