"""Waits for what another process signals: in time, late, never, and of a process that has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.sim import SimDriver
from memtopo.machine import target
from memtopo.plans.report import Check, Progress, Report
from memtopo.run import processes
from memtopo.run.apply import apply
from memtopo.run.processes import Ensemble
from memtopo.sharing.attaching import Holders
from tests.helpers.machines import invented
from tests.helpers.owner import uuid
from tests.helpers.silent import Silent, silent
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
def producer(tmp_path: Path) -> Iterator[Silent]:
    """A producer that is alive, and has signalled nothing."""
    with silent(tmp_path, uuid(MACHINE)) as found:
        yield found


class At(Progress):
    """Does something when a phase begins."""

    def __init__(self, phase: str, does: Callable[[], object]) -> None:
        self.at, self.does = phase, does

    def phase(self, name: str, steps: int) -> None:
        del steps
        if name == self.at:
            self.does()


def applied(
    producer: Silent,
    timeout: float = 30.0,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    holders: type[Holders] = Holders,
    check: Check = "fast",
    *,
    alone: bool = True,
) -> tuple[Report, Ledger]:
    """The layout, built with what the producer makes."""
    made = replace(run_request(TEXT, MACHINE, check), timeout=timeout, exclusive=alone)
    handle_source = holders(made.geometry, target.uuids(MACHINE), {"camera": producer.path})
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(driver)
        return apply(made, ledger, handle_source=handle_source, progress=progress, stop=stop), ledger


def test_a_signal_that_comes_late(producer: Silent) -> None:
    """A wait ends with the producer's signal, and the producer sees what is signalled in return"""
    report, ledger = applied(producer, progress=At("synchronize", lambda: producer.tell("signal 1")))
    assert (report.outcome, ledger.empty) == ("ok", True), report
    assert producer.tell("counter") == "2"


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_producer_that_never_signals(producer: Silent, check: Check) -> None:
    """A wait that outlasts its time fails by name; nothing that would hang is called, and all that stays is named"""
    start = time.monotonic()
    report, ledger = applied(producer, timeout=0.2, check=check)
    assert time.monotonic() - start < 10
    assert report.failure
    assert report.failure.error == "semaphore 'ready' of camera did not reach 1 within 0.2 s"
    assert report.failure.path == ("semaphores", "ready")
    assert (report.outcome, report.exit_code) == ("leaked", 5)
    (leak,) = report.leaks
    assert leak.what == "wait of gpu0"
    assert "it waits for semaphore 'ready' of camera to reach 1, which nobody signalled" in leak.error
    assert leak.stays == (*STAYS, *(("kernels of gpu1", "kernels of gpu0") if check == "full" else ()), *CONTEXTS)
    # What can be given back all the same is: ranges, chunks and mappings, the stream, and the other GPU's buffer.
    left = {kind: count for kind, count in ledger.counts().items() if count}
    kernels = {"modules": 2} if check == "full" else {}
    assert left == {"contexts": 2, "allocations": 3, "external": 1, "semaphores": 1, **kernels}
    assert producer.tell("counter") == "0"
    assert not any("given back" in note for note in report.notes)


def test_a_producer_that_dies(producer: Silent) -> None:
    """Where the producer dies, nobody waits any longer; its semaphore is signalled here, and everything is undone"""
    start = time.monotonic()
    report, ledger = applied(producer, timeout=60.0, progress=At("synchronize", producer.kill))
    assert time.monotonic() - start < 20
    assert report.failure
    assert report.failure.error == "semaphore 'ready' of camera did not reach 1: camera has ended"
    assert report.failure.hint == "keep the producer alive until it has signalled"
    assert (report.exit_code, ledger.empty) == (4, True), report


def test_a_producer_that_dies_after_its_signal(producer: Silent) -> None:
    """What a producer signalled before it died is worth as much as ever"""

    def last() -> None:
        producer.tell("signal 1")
        producer.kill()

    report, ledger = applied(producer, progress=At("synchronize", last))
    assert (report.outcome, ledger.empty) == ("ok", True), report


class DiesFirst(Holders):
    """Holders of which one dies when it is asked for a handle."""

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        PRODUCERS[-1].kill()
        return super().take(holder, export, index)


PRODUCERS: list[Silent] = []


def test_a_producer_that_dies_before_the_import(producer: Silent) -> None:
    """A producer that dies between its offer and the import is told with what is declared to come from it"""
    PRODUCERS.append(producer)
    report, ledger = applied(producer, holders=DiesFirst)
    assert (report.exit_code, ledger.empty) == (4, True), report
    assert report.failure
    assert report.failure.step == "copy descriptor frame"
    assert "external 'frame' cannot be had" in report.failure.error


def test_an_interrupted_wait(producer: Silent) -> None:
    """Whoever is interrupted while it waits still lets the wait end when it is taken down"""
    waiting: list[bool] = []

    def stop() -> int:
        if waiting:
            producer.tell("signal 1")
        return 2 if waiting else 0

    report, ledger = applied(producer, progress=At("synchronize", lambda: waiting.append(True)), stop=stop)
    assert (report.outcome, report.exit_code, ledger.empty) == ("interrupted", 130, True), report


def test_one_process_of_several(producer: Silent) -> None:
    """In a process of several a wait has as long as a process may be silent, and fails the run by name"""
    made = ensemble(PROCESSES, MACHINE, timeout=30.0)
    text = document(PROCESSES).text

    def with_timeout(timeout: float) -> Report:
        return processes.apply(Ensemble(made.request, text, MACHINE, timeout, {"camera": producer.path}))

    report = with_timeout(1.0)
    assert (report.outcome, report.exit_code) == ("leaked", 5), report
    assert report.failure
    assert report.failure.error == "semaphore 'ready' of camera did not reach 1 within 1 s"
    assert [leak.what for leak in report.leaks] == ["viewer: wait of gpu0"]
    producer.tell("signal 1")
    report = with_timeout(30.0)
    assert report.outcome == "ok", report
    assert producer.tell("counter") == "2"


def test_two_wait_for_a_producer_that_dies(producer: Silent) -> None:
    """What one importer signals to end its own wait is not taken for the producer's signal by another one"""
    with ThreadPoolExecutor(2) as pool:
        met = Barrier(2)

        def once() -> None:
            if met.wait(30) == 0:
                producer.kill()

        how = partial(applied, producer, timeout=60.0, progress=At("synchronize", once), alone=False)
        runs = [pool.submit(how) for _ in range(2)]
        reports = [run.result()[0] for run in runs]
    assert [report.exit_code for report in reports] == [4, 4], reports
