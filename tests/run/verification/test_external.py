"""Waits for an external producer: that signals in time, late, or never, or that ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
from msgspec.structs import replace

from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers import target
from memtopo.drivers.sim import SimDriver
from memtopo.language import SpecText
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check, Report
from memtopo.run import processes
from memtopo.run.apply import apply
from memtopo.run.processes import Ensemble
from memtopo.sharing.imports import HolderHandles
from tests.helpers.faults import Faulty
from tests.helpers.in_process_producer import uuid
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.scripted_producer import ScriptedProducer, scripted_producer
from tests.helpers.shared_producers import handle_source
from tests.helpers.specs import document, ensemble, run_request

MACHINE = invented(2)
TEXT = """
external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB, dedicated: true, buffers: {y: {size: 4MiB}}}}
semaphores: {ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1, signal: 2}}
buffers: {b: {location: gpu0, size: 2MiB}, other: {location: gpu1, size: 2MiB}}
ranges: {r: {size: 2MiB}}
chunks: {c: {location: gpu0, size: 2MiB}}
map: {r: c}
access: {r: {gpu0: rw}}
"""
PROCESSES = f"""
processes:
  viewer: {{{", ".join(line for line in TEXT.splitlines() if line)}}}
  other: {{buffers: {{b: {{location: gpu0, size: 2MiB}}}}}}
"""
STAYS = "mapped buffer frame.y", "mapped buffer frame", "semaphore ready", "external memory frame", "buffer b"
CONTEXTS = "context of gpu1", "context of gpu0"


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[ScriptedProducer]:
    """A producer that is alive, and has signalled nothing."""
    with scripted_producer(tmp_path, uuid(MACHINE)) as found:
        yield found


class At(Progress):
    """Does something when a phase begins."""

    def __init__(self, phase: str, does: Callable[[], object]) -> None:
        self.at, self.does = phase, does

    def phase(self, name: str, steps: int, _processes: object = None) -> None:
        del steps
        if name == self.at:
            self.does()


def apply_from_producer(
    producer: ScriptedProducer,
    timeout: float = 30.0,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    holders: type[HolderHandles] = HolderHandles,
    check: Check = "fast",
    *,
    alone: bool = True,
    text: str = TEXT,
    wrap: Callable[[KernelDriver], KernelDriver] = lambda driver: driver,
) -> tuple[Report, Ledger]:
    """The layout, built with what the producer makes."""
    made = replace(run_request(text, MACHINE, check), timeout=timeout, exclusive=alone)
    handle_source = holders(made.geometry, target.uuids(MACHINE), {"camera": producer.path})
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(wrap(driver))
        return apply(made, ledger, handle_source=handle_source, progress=progress, stop=stop), ledger


def test_a_wait_ends_with_a_late_signal(producer: ScriptedProducer) -> None:
    report, ledger = apply_from_producer(producer, progress=At("synchronize", lambda: producer.request("signal 1")))
    assert (report.outcome, ledger.empty) == ("ok", True), report
    assert producer.request("counter") == "2"


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_wait_without_signal_times_out_and_names_all_that_stays(producer: ScriptedProducer, check: Check) -> None:
    start = time.monotonic()
    report, ledger = apply_from_producer(producer, timeout=0.2, check=check)
    assert time.monotonic() - start < 10
    assert report.failure
    assert report.failure.error == "semaphore 'ready' of camera did not reach 1 within 0.2 s"
    assert report.failure.path == ("semaphores", "ready")
    assert (report.outcome, report.exit_code) == ("leaked", 5)
    (leak,) = report.leaks
    assert leak.what == "wait of gpu0"
    assert "it waits for semaphore 'ready' of camera to reach 1, which was not signalled" in leak.error
    assert leak.stays == (*STAYS, *(("kernels of gpu1", "kernels of gpu0") if check == "full" else ()), *CONTEXTS)
    # What can be given back all the same is: ranges, chunks and mappings, the stream, and the other GPU's buffer.
    left = {kind: count for kind, count in ledger.counts().items() if count}
    kernels = {"modules": 2} if check == "full" else {}
    assert left == {"contexts": 2, "allocations": 3, "external": 1, "semaphores": 1, **kernels}
    assert producer.request("counter") == "0"
    assert not any("closed" in note for note in report.notes)


def test_a_wait_ends_when_its_producer_ends_and_everything_is_undone(producer: ScriptedProducer) -> None:
    start = time.monotonic()
    report, ledger = apply_from_producer(producer, timeout=60.0, progress=At("synchronize", producer.kill))
    assert time.monotonic() - start < 20
    assert report.failure
    assert report.failure.error == "semaphore 'ready' of camera did not reach 1: camera has ended"
    assert report.failure.hint == "keep the producer alive until it has signalled"
    assert (report.exit_code, ledger.empty) == (4, True), report


class Unpopped(Forwarder):
    """A driver that loses a signal, and cannot pop the context in which it was given."""

    signalled = False

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        del semaphore, value, stream
        self.signalled = True

    def ctx_pop_current(self) -> int:
        if self.signalled:
            self.signalled = False
            raise DriverError("cuCtxPopCurrent", "CUDA_ERROR_UNKNOWN")
        return int(self._driver.ctx_pop_current())


def test_a_wait_is_looked_at_after_a_signal_whose_context_cannot_be_popped(producer: ScriptedProducer) -> None:
    report, ledger = apply_from_producer(producer, progress=At("synchronize", producer.kill), wrap=Unpopped)
    (leak,) = report.leaks
    assert (report.exit_code, leak.what, leak.stays) == (5, "wait of gpu0", (*STAYS, *CONTEXTS))
    assert not ledger.empty


class Unanswered(Forwarder):
    """A driver that begins a wait, and fails."""

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        self._driver.wait_external_semaphore(semaphore, value, stream)
        raise DriverError("cuWaitExternalSemaphoresAsync", "CUDA_ERROR_UNKNOWN")


@pytest.mark.timeout(60)
def test_a_wait_that_has_begun_although_its_call_failed_keeps_what_it_blocks(producer: ScriptedProducer) -> None:
    report, _ = apply_from_producer(producer, timeout=0.2, wrap=Unanswered)
    (leak,) = report.leaks
    assert (report.exit_code, leak.what, leak.stays) == (5, "wait of gpu0", (*STAYS, *CONTEXTS))


def test_a_signal_of_a_producer_that_has_ended_counts(producer: ScriptedProducer) -> None:
    def last() -> None:
        producer.request("signal 1")
        producer.kill()

    report, ledger = apply_from_producer(producer, progress=At("synchronize", last))
    assert (report.outcome, ledger.empty) == ("ok", True), report


class DiesFirst(HolderHandles):
    """Holders of which one dies when it is asked for a handle."""

    def take(self, holder: str, export: str, index: int) -> Handle:
        PRODUCERS[-1].kill()
        return super().take(holder, export, index)


PRODUCERS: list[ScriptedProducer] = []


def test_a_producer_that_ends_before_the_import_is_named_with_the_entry(producer: ScriptedProducer) -> None:
    PRODUCERS.append(producer)
    report, ledger = apply_from_producer(producer, holders=DiesFirst)
    assert (report.exit_code, ledger.empty) == (4, True), report
    assert report.failure
    assert report.failure.step == "copy descriptor frame"
    assert "external 'frame' cannot be imported" in report.failure.error


def test_an_interrupted_wait_ends_in_the_teardown(producer: ScriptedProducer) -> None:
    waiting: list[bool] = []

    def stop() -> int:
        if waiting:
            producer.request("signal 1")
        return 2 if waiting else 0

    report, ledger = apply_from_producer(producer, progress=At("synchronize", lambda: waiting.append(True)), stop=stop)
    assert (report.outcome, report.exit_code, ledger.empty) == ("interrupted", 130, True), report


def test_a_wait_in_a_multi_process_layout_has_the_timeout_of_a_process(producer: ScriptedProducer) -> None:
    made = ensemble(PROCESSES, MACHINE, timeout=30.0)
    text = SpecText.of(document(PROCESSES))

    def with_timeout(timeout: float) -> Report:
        return processes.apply(Ensemble(made.request, text, MACHINE, timeout, {"camera": producer.path}))

    report = with_timeout(1.0)
    assert (report.outcome, report.exit_code) == ("leaked", 5), report
    assert report.failure
    assert report.failure.error == "semaphore 'ready' of camera did not reach 1 within 1 s"
    assert [leak.what for leak in report.leaks] == ["viewer: wait of gpu0"]
    producer.request("signal 1")
    report = with_timeout(30.0)
    assert report.outcome == "ok", report
    assert producer.request("counter") == "2"


CHAINED = """
semaphores:
  last: {from: camera/ready, via: timeline_fd, device: gpu1, wait: 3}
  middle: {from: camera/ready, via: timeline_fd, device: gpu1, wait: 1, signal: 3}
  first: {from: camera/ready, via: timeline_fd, device: gpu0, signal: 1}
"""


def test_what_other_entries_wait_for_is_signalled_before_their_waits(producer: ScriptedProducer) -> None:
    """Entries that only signal come first, then waits by ascending value, whatever their order in the spec."""
    report, ledger = apply_from_producer(producer, timeout=5.0, text=CHAINED)
    assert (report.outcome, ledger.empty) == ("ok", True), report
    assert producer.request("counter") == "3"
    found = tallies(report.checks)
    assert (found["wait"].looked_at, found["signal"].looked_at) == (2, 2)


class NotesCounter(Faulty):
    """Notes the value of the producer's timeline at each read of memory."""

    def __init__(self, driver: KernelDriver, producer: ScriptedProducer, values: set[str]) -> None:
        self.producer, self.values = producer, values
        super().__init__(driver)

    def memcpy_dtoh(self, address: int, count: int) -> bytes:
        self.values.add(self.producer.request("counter"))
        return self._driver.memcpy_dtoh(address, count)


def test_memory_is_read_between_the_wait_for_it_and_the_signal(producer: ScriptedProducer) -> None:
    producer.request("signal 1")
    values = set[str]()
    report, _ = apply_from_producer(producer, wrap=partial(NotesCounter, producer=producer, values=values))
    assert (report.outcome, producer.request("counter"), values) == ("ok", "2", {"1"}), report


def test_a_signal_by_an_importer_is_not_taken_for_the_producer_s(producer: ScriptedProducer) -> None:
    with ThreadPoolExecutor(2) as pool:
        met = Barrier(2)

        def once() -> None:
            if met.wait(30) == 0:
                producer.kill()

        how = partial(apply_from_producer, producer, timeout=60.0, progress=At("synchronize", once), alone=False)
        runs = [pool.submit(how) for _ in range(2)]
        reports = [run.result()[0] for run in runs]
    assert [report.exit_code for report in reports] == [4, 4], reports


class RecordsParts(Faulty):
    """Notes the parts of external memory that are mapped."""

    parts: tuple[tuple[int, int], ...] = ()

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        self.parts = *self.parts, (offset, size)
        return self._driver.external_memory_get_mapped_buffer(memory, offset, size)


def test_each_part_of_external_memory_is_mapped_at_its_offset() -> None:
    parts = "buffers: {y: {offset: 1MiB, size: 2MiB}, uv: {offset: 6MiB, size: 1MiB}}"
    text = f"external: {{frame: {{from: camera, via: opaque_fd, device: gpu0, size: 8MiB, {parts}}}}}\n"
    machine = invented(1)
    made = run_request(text, machine)
    with SimDriver(machine) as driver:
        driver.init()
        recorder = RecordsParts(driver)
        report = apply(made, Ledger(recorder), handle_source=handle_source(made, machine))
    assert report.exit_code == 0, report
    assert recorder.parts == ((0, 8 << 20), (1 << 20, 2 << 20), (6 << 20, 1 << 20))


@pytest.mark.parametrize("size", ["16B", "64B", "65B", "4KiB"])
def test_both_ends_of_a_buffer_are_read_however_small_it_is(size: str) -> None:
    frame = f"from: camera, via: opaque_fd, device: gpu0, size: 8MiB, buffers: {{y: {{size: {size}}}}}"
    text = f"external: {{frame: {{{frame}}}}}\n"
    machine = invented(1)
    made = run_request(text, machine)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(made, Ledger(driver), handle_source=handle_source(made, machine))
    assert report.exit_code == 0, report
    assert report.checks
    (readable,) = (each for each in report.checks.tallies if each.aspect == "readable")
    assert readable.looked_at == 2 + (1 if size in {"16B", "64B"} else 2)
