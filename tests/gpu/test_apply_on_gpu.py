"""Runs on a real GPU. `make test-gpu` includes them, and fails without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import LocationKind
from memtopo.drivers.target import Target
from memtopo.language import read_file, read_text
from memtopo.plans.report import Report
from memtopo.run import apply
from memtopo.session.composition import Composition, RunRequest
from tests.helpers.failing_driver import Failing
from tests.helpers.specs import SPECS
from tests.run.test_undo import UNDO, left_open, points

pytestmark = pytest.mark.gpu

SMALL = b"""
memtopo: 1
name: small
ranges: {a: {size: 12MiB}, b: {size: 8MiB}}
chunks: {one: {location: gpu0, size: 2MiB}, two: {location: gpu0, size: 2MiB, count: 4, handles: fd}}
map: {a: [one, two, one], b: [{chunk: two, offset: 0}]}
access: {a: {gpu0: rw}, b: {gpu0: r}}
"""


@pytest.fixture
def contexts(local: Target) -> Iterator[KernelDriver]:
    """The driver, with every context kept alive so that a thousand runs do not each make one."""
    driver = local.open()
    for device in range(len(local.machine.devices)):
        driver.device_primary_ctx_retain(device)
    yield driver
    for device in range(len(local.machine.devices)):
        driver.device_primary_ctx_release(device)


def run_request(spec: bytes | Path, local: Target) -> RunRequest | None:
    document = read_file(spec) if isinstance(spec, Path) else read_text(spec, "small.yaml")
    composition = Composition.of(document, local)
    if not composition.valid:
        assert {fault.code for fault in composition.diagnostics if fault.severity == "error"} == {"MT401"}
        return None
    return composition.request(machine_facts=None)


OWN = [path for path in SPECS if path.stem != "vulkan-frame"]  # its producer is in test_vulkan.py


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_every_shipped_spec_is_built_as_declared_on_this_machine(path: Path, local: Target) -> None:
    """If the machine has the GPUs for it; nothing remains."""
    made = run_request(path, local)
    if made is None:
        pytest.skip(f"needs more than {len(local.machine.devices)} GPU")
    if made.geometry.imports_from_outside:
        pytest.skip("needs a producer, as in test_pinned_on_gpu.py")
    ledger = Ledger(local.open())
    report = apply.apply(made, ledger)
    assert report.outcome == "ok", report
    assert ledger.empty


def test_a_thousand_runs_leave_descriptors_and_gpu_memory_unchanged(local: Target, contexts: KernelDriver) -> None:
    """And the ledger empty."""
    made = run_request(SMALL, local)
    assert made
    warm = apply.apply(made, Ledger(contexts))
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        ledger = Ledger(contexts)
        report = apply.apply(made, ledger)
        assert report.exit_code == 0, report
        assert ledger.empty
    assert len(os.listdir("/proc/self/fd")) == fds
    assert warm.left
    assert report.left
    assert report.left.memory == warm.left.memory


def test_a_failure_of_any_call_on_a_gpu_is_undone_or_named(local: Target, contexts: KernelDriver) -> None:
    made = run_request(SMALL, local)
    assert made
    calls = _run(made, contexts, 0)[1].calls
    tried = points(calls, 140)
    assert len(tried) >= 100
    before = _run(made, contexts, 0)[0]
    for at in tried:
        report, failing, ledger = _run(made, contexts, at)
        where = f"call {at} of {calls}, {failing.failed}: {report}"
        if report.leaks:
            assert failing.failed in UNDO, where
            assert report.exit_code == 5, where
            left_open(ledger.counts(), len(report.leaks) + sum(len(leak.stays) for leak in report.leaks), where)
            _clean(ledger, contexts)
        else:
            assert report.exit_code == 4, where
            assert ledger.empty, where
    after = _run(made, contexts, 0)[0]
    assert before.left
    assert after.left
    assert after.left.memory == before.left.memory


def _run(made: RunRequest, driver: KernelDriver, at: int) -> tuple[Report, Failing, Ledger]:
    failing = Failing(driver, at)
    ledger = Ledger(failing)
    return apply.apply(made, ledger), failing, ledger


def _clean(ledger: Ledger, driver: KernelDriver) -> None:
    """Take down the leaks of a failed undo by the ledger, so that the next run starts clean."""
    for address, size in ledger.accounts["mappings"].items():
        driver.mem_unmap(address, size)
    for address, size in ledger.accounts["reservations"].items():
        driver.mem_address_free(address, size)
    for handle, references in ledger.accounts["handles"].items():
        for _ in range(references):
            driver.mem_release(handle)
    for device, retains in ledger.accounts["contexts"].items():
        for _ in range(retains):
            driver.device_primary_ctx_release(device)


def test_the_local_machine_has_gpus_with_uuids(local: Target) -> None:
    assert local.machine.devices
    assert all(device.uuid and device.uuid.startswith("GPU-") for device in local.machine.devices)
    assert all(place.kind in LocationKind for place in local.machine.locations)
