"""A full check on a real GPU: no false alarm, and layouts that were built wrong on purpose are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, Grant
from memtopo.drivers.target import Target
from memtopo.language import SpecText, read_text
from memtopo.plans.report import Check, Report
from memtopo.run import apply, processes
from memtopo.run.verification.rounds import FORBIDDEN, UNSAFE
from tests.helpers.forwarding import HandleRecorder
from tests.helpers.reports import tallies
from tests.helpers.specs import request_of, server_and_readers
from tests.helpers.strategies import specs
from tests.run.verification.test_full import WRONG_EXPORT_WORKER

pytestmark = pytest.mark.gpu

SPEC = """
memtopo: 1
name: whole
ranges: {kv: {size: 12MiB}, view: {size: 2MiB}}
chunks: {hot: {location: gpu0, size: 2MiB}, cold: {location: gpu0, size: 2MiB}, long: {location: gpu0, size: 6MiB}}
map: {kv: [hot, cold, long], view: hot}
access: {kv: {gpu0: rw}, view: {gpu0: r}}
"""
SAME = settings(
    max_examples=50, derandomize=True, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


class SwappedChunks(HandleRecorder):
    """Exchanges the first two chunks in their first mappings."""

    mapped = 0

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        first, second = self._created[:2]
        self.mapped += 1
        swapped = {first: second, second: first} if self.mapped <= 2 else {}
        self._driver.mem_map(address, size, swapped.get(handle, handle), offset, flags)


class UnreleasedHandle(HandleRecorder):
    """Leaves the second chunk unreleased."""

    def mem_release(self, handle: int) -> None:
        if handle != self._created[1] or self.kept:
            self._driver.mem_release(handle)
        self.kept = self.kept or handle == self._created[1]

    kept = False


class ReadOnlyGrants(HandleRecorder):
    """Lets everyone read alone."""

    def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
        self._driver.mem_set_access(address, size, tuple(grant._replace(access=Access.R) for grant in grants))


def apply_on_gpu(
    text: str,
    local: Target,
    wrap: Callable[[Any], Any] = lambda each: each,
    *,
    check: Check = "full",
    replicas: bool = False,
) -> Report:
    facts = local.machine if replicas else None
    request = request_of(read_text(text.encode(), "whole.yaml"), local, check=check, machine_facts=facts)
    ledger = Ledger(wrap(local.open()))
    report = apply.apply(request, ledger)
    assert ledger.empty
    return report


def test_a_correct_layout_passes_a_full_check(local: Target) -> None:
    """Every byte is verified, forbidden accesses end their replicas, and rates are reported."""
    report = apply_on_gpu(SPEC, local, replicas=True)
    assert report.exit_code == 0, report
    assert report.checks
    found = tallies(report.checks)
    assert found["every byte"].looked_at == 4
    assert found["refused"].looked_at == 1
    assert found[FORBIDDEN].looked_at == 1
    assert {rate.verb for rate in report.checks.rates} == {"fill", "verify"}


def test_swapped_chunks_are_differences_of_handles_and_bytes(local: Target) -> None:
    report = apply_on_gpu(SPEC, local, SwappedChunks)
    assert report.exit_code == 6
    assert report.checks
    found = {(each.aspect, each.subject) for each in report.checks.differences}
    assert ("mapped chunk", "hot in kv at 0x0") in found
    assert ("every byte", "hot + 0x0 in view at 0x0 by gpu0") in found


def test_wrong_access_is_a_difference_before_any_kernel(local: Target) -> None:
    report = apply_on_gpu(SPEC, local, ReadOnlyGrants)
    assert report.exit_code == 6
    assert report.checks
    assert {each.aspect for each in report.checks.differences} == {"access"}
    assert any(tally.why_not == UNSAFE for tally in report.checks.tallies)


def test_memory_of_an_unreleased_chunk_is_noted(local: Target) -> None:
    """Its handle was released, and no call with a released handle is safe (fact 27)."""
    report = apply_on_gpu(SPEC, local, UnreleasedHandle, check="fast")
    assert report.exit_code == 0
    assert any("less free than before" in note for note in report.notes)
    assert apply_on_gpu(SPEC, local).exit_code == 0


def test_a_wrong_export_is_a_difference_of_its_importer(local: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_WRONG_EXPORT", "server")
    document = read_text(("memtopo: 1\nname: lied\n" + server_and_readers(3, access="gpu0: r")).encode(), "lied.yaml")
    request = request_of(document, local, check="full")
    report = processes.apply(
        processes.Ensemble(request, SpecText.of(document), local.machine, worker=WRONG_EXPORT_WORKER)
    )
    assert (report.outcome, report.exit_code) == ("different", 6), report
    assert report.checks
    assert any(each.subject.startswith("reader: w.0") for each in report.checks.differences)


@SAME
@given(data=st.data())
def test_an_accepted_random_spec_passes_a_full_check(data: st.DataObject, local: Target) -> None:
    """On all GPUs: `gpus` in a spec for fewer would not have that number of locations."""
    spec = data.draw(specs(gpus=len(local.machine.devices), multicast=False))
    report = apply_on_gpu(spec, local)
    assert report.checks
    assert {difference.aspect for difference in report.checks.differences} <= {"address"}, (spec, report)
    assert report.outcome in ("ok", "different"), (spec, report)
