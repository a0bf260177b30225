"""The calls that a plan lists are those that a run makes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import field
from msgspec.structs import asdict, replace

from memtopo import machine
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.recorder import CallContext, CallList, DriverCall, Recorder
from memtopo.drivers.sim import SimDriver
from memtopo.executor import StepFailed
from memtopo.kinds.layout import Layout
from memtopo.kinds.resources import ReserveRange
from memtopo.plans.calls import Exchange, NamedCall, listing_entry, named
from memtopo.run import apply
from memtopo.run.planned_calls import first_calls, planned_calls
from memtopo.session.composition import RunRequest
from tests.helpers.shared_producers import handle_source
from tests.helpers.specs import EVERY_SPEC, ROOT, SPECS, composed, run_request

H200X4 = machine.load("h200x4")


def made_calls(request: RunRequest) -> list[DriverCall]:
    """Calls of a run on a simulator."""
    context = CallContext()
    record = CallList(context)
    with SimDriver(H200X4) as driver:
        driver.init()
        ledger = Ledger(Recorder(driver, record))
        source = handle_source(request, H200X4)
        report = apply.apply(request, ledger, handle_source=source, context=context)
    assert report.outcome == "ok", report
    return record.calls


def calls_of(entries: list[DriverCall] | list[NamedCall | Exchange]) -> list[object]:
    """Named calls as they are listed, without what a process exchanges and what it receives."""
    found = [listing_entry(each) for each in named(entries) if not isinstance(each, Exchange)]  # type: ignore[arg-type]
    return [(each.step, each.undo, each.function, each.makes, _own(each.arguments)) for each in found]  # type: ignore[union-attr]


def _own(arguments: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in arguments.items() if name not in ("shared", "data", "fd")}


SOLE = [
    pytest.param(path, marks=pytest.mark.exhaustive if path.stem == "paged-kv" else (), id=path.stem) for path in SPECS
]
"""Specs of one process, that of 32,000 chunks exhaustively."""


@pytest.mark.parametrize("path", SOLE)
def test_a_plan_lists_the_calls_of_a_run(path: Path) -> None:
    """In order, with equal arguments; addresses and handles by the names of what they are of."""
    request = run_request(path, H200X4, "none")
    planned = planned_calls(request.plan, request.geometry)[""]
    assert calls_of(list(planned)) == calls_of(made_calls(request))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_a_listing_makes_and_ends_as_many_objects_and_leaves_no_file_open(path: Path) -> None:
    found = composed(path, H200X4)
    before = os.listdir("/proc/self/fd")
    for entries in planned_calls(found.plan, found.geometry).values():
        methods = [each.method for each in entries if isinstance(each, DriverCall) and each.of_step]
        for makes, ends in (("mem_address_reserve", "mem_address_free"), ("event_create", "event_destroy")):
            opened = methods.count("ipc_open_event_handle") if makes == "event_create" else 0
            assert methods.count(makes) + opened == methods.count(ends)
        released = methods.count("mem_release")
        made = ("mem_create", "mem_import_from_shareable_handle", "multicast_create")
        assert released == sum(map(methods.count, made))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_each_row_of_a_plan_has_the_calls_of_its_first_step(path: Path) -> None:
    composition = composed(path, H200X4)
    summary = composition.plan.summary()
    rows = {each.first: each.rows for each in summary.processes} or {"": summary.rows}
    calls = first_calls(composition.plan, composition.geometry)
    for label, expected in rows.items():
        assert len(calls[label]) == len(expected)
        for row, found in zip(expected, calls[label], strict=True):
            functions = {each.function for each in found}
            assert not row.call.startswith("cu") or row.call in functions or not found, (row, functions)
            assert {each.verb for each in found} <= {row.verb}


class FailingOnce(ReserveRange, frozen=True):
    """A step that fails when it is made for the first time."""

    attempts: list[str] = field(default_factory=list)
    apart = frozenset({"path", "attempts"})

    def do(self, driver: Driver, layout: Layout) -> None:
        self.attempts.append(self.label)
        if len(self.attempts) == 1:
            raise ValueError("a defect of the step")
        ReserveRange.do(self, driver, layout)


def test_rows_are_listed_again_only_for_an_object_that_is_missing() -> None:
    request = run_request(ROOT / "specs" / "quickstart.yaml", H200X4)
    steps = request.plan.steps
    at = next(index for index, each in enumerate(steps) if isinstance(each, ReserveRange))
    failing = replace(request.plan, items=(*steps[:at], FailingOnce(**asdict(steps[at])), *steps[at + 1 :]))
    with pytest.raises(StepFailed, match="a defect of the step"):
        first_calls(failing, request.geometry)


def test_only_the_first_step_of_a_row_and_what_it_needs_is_gone_through() -> None:
    """The plan of a million ranges takes no more calls than that of one."""
    ranges = run_request("ranges: {r: {size: 2MiB, count: 3}}", H200X4)
    *before, last = ranges.plan.steps
    assert last.provides == ("range", "r.2")
    unused = FailingOnce(**asdict(last))
    calls = first_calls(replace(ranges.plan, items=(*before, unused)), ranges.geometry)
    assert [[each.function for each in row] for row in calls[""]] == [["cuMemAddressReserve"]]
    assert unused.attempts == []


def test_every_sent_handle_is_received_by_its_importer() -> None:
    request = run_request(ROOT / "specs" / "hand-over.yaml", H200X4)
    calls = planned_calls(request.plan, request.geometry)
    sent = [each for each in calls["prefill"] if isinstance(each, Exchange) and each.action == "send"]
    received = [each for each in calls["decode"] if isinstance(each, Exchange) and each.action == "receive"]
    assert [(each.export, each.number) for each in sent] == [(each.export, each.number) for each in received]
    assert len(sent) == 33
    assert {each.peer for each in sent} == {"decode"}


def test_a_process_waits_for_its_importers_before_it_releases() -> None:
    request = run_request(ROOT / "specs" / "hand-over.yaml", H200X4)
    entries = planned_calls(request.plan, request.geometry)["prefill"]
    at = next(index for index, each in enumerate(entries) if isinstance(each, Exchange) and each.action == "await")
    after = [each.method for each in entries[at:] if isinstance(each, DriverCall)]
    before = [each.method for each in entries[:at] if isinstance(each, DriverCall)]
    assert "mem_unmap" in before
    assert "mem_release" in after
    assert "mem_release" not in before
