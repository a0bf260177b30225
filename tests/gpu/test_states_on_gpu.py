"""States on a real GPU: rehearsals, and a thousand switches."""

from __future__ import annotations

from dataclasses import replace

import pytest

import memtopo
from memtopo import planner
from memtopo.driver.ledger import Ledger
from memtopo.kinds.layout import current
from memtopo.language import read_file
from memtopo.machine.target import Target
from memtopo.plans.report import Check, MachineLine
from memtopo.rules.validation import validate
from memtopo.run import apply
from memtopo.run.request import RunRequest
from tests.helpers.specs import ROOT

pytestmark = pytest.mark.gpu
SLEEP = ROOT / "specs/sleep-mode.yaml"


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_sleep_mode_is_rehearsed_with_its_bytes(local: Target, check: Check) -> None:
    validated = validate(read_file(SLEEP), local.machine)
    assert validated.geometry is not None, validated.diagnostics
    plan = planner.plan(validated.geometry, local.machine)
    line = MachineLine("local", simulated=False, devices=(), driver="")
    request = RunRequest(plan, validated.geometry, line, check=check, machine_facts=local.machine)
    ledger = Ledger(local.open())
    report = apply.apply(replace(request, rehearse=True), ledger)
    assert ledger.empty
    assert report.outcome == "ok", report


def test_a_thousand_switches_leave_bytes_ledger_and_free_memory_unchanged() -> None:
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
                    found.append((driver.mem_get_info()[0], session.run.ledger.counts()))
        assert found[0] == found[-1]
