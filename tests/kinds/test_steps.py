"""Steps of managed memory, external memory and semaphores: applied, checked and undone on the simulator."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from memtopo.common.units import MiB
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, Location, MemAttach
from memtopo.drivers.sim import SimDriver, external_api
from memtopo.kinds.ipc.steps import EVENT_HANDLES
from memtopo.kinds.layout import current
from memtopo.kinds.step import HandleReference
from memtopo.machine import Machine
from memtopo.plans.report import Check, Report
from memtopo.run.apply import apply
from tests.helpers.failing_driver import Failing
from tests.helpers.in_process_producer import BYTES, InProcessProducer, camera, is_intact, uuid
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of, run_request
from tests.run.test_transition import built

MACHINE = invented(2)

FRAME = """
external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB,
                   buffers: {y: {size: 4MiB}, uv: {offset: 4MiB, size: 2MiB}}}}
semaphores: {ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1, signal: 2}}
"""

MANAGED = """
managed:
  m: {size: 2MiB, prefer: gpu0, accessed_by: [host, gpu1], read_mostly: true, prefetch: gpu1}
  own: {size: 3MiB, attach: single, prefetch: gpu0}
  h: {size: 100KiB, attach: host, prefer: host, prefetch: host}
"""

UNDO = {
    "cuMemFree", "cuDestroyExternalMemory", "cuDestroyExternalSemaphore", "cuStreamDestroy",
    "cuDevicePrimaryCtxRelease",
}  # fmt: skip


def apply_with_owner(
    text: str, owner: InProcessProducer | None = None, *, machine: Machine = MACHINE, at: int = 0, check: Check = "fast"
) -> tuple[Report, Ledger, Failing]:
    """A spec on a simulator whose `at`-th call fails, with what the owner delivers."""
    with SimDriver(machine) as driver:
        driver.init()
        failing = Failing(driver, at)
        ledger = Ledger(failing)
        return apply(run_request(text, machine, check), ledger, handle_source=owner), ledger, failing


def tallied(report: Report) -> dict[str, tuple[int, int]]:
    assert report.checks
    return {tally.aspect: (tally.looked_at, tally.as_declared) for tally in report.checks.tallies}


@pytest.mark.parametrize("check", ["fast", "full"])
def test_managed_memory_is_checked_from_both_sides_and_freed(check: Check) -> None:
    report, ledger, _ = apply_with_owner(MANAGED, check=check)
    assert (report.outcome, ledger.empty) == ("ok", True), report
    found = tallied(report)
    wanted = {"managed": 6, "read mostly": 1, "preferred": 2, "accessed by": 2, "prefetched": 3}
    assert {aspect: found[aspect] for aspect in wanted} == {aspect: (count, count) for aspect, count in wanted.items()}
    # Two ends of three allocations: the host reads each, and so does each GPU that it is for.
    assert found["both sides"] == (14, 14)
    assert report.plan.memory == {"gpu0": 5 * MiB, "host": 100 << 10}


class KeepsABlock(SimDriver):
    """Keeps what managed memory took of a GPU, as hardware does for as long as the process lives (fact 60)."""

    taken = 0

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        self.taken = 128 * MiB
        return super().mem_alloc_managed(size, flags)

    def mem_get_info(self) -> tuple[int, int]:
        free, total = super().mem_get_info()
        return free - self.taken, total


def test_the_block_that_the_driver_keeps_of_managed_memory_is_no_leak() -> None:
    with KeepsABlock(MACHINE) as driver:
        driver.init()
        report = apply(run_request("managed: {m: {size: 2MiB, prefer: gpu0}}\n", MACHINE), Ledger(driver))
    assert (report.outcome, report.leaks) == ("ok", ())
    (note,) = report.notes
    assert note.startswith(
        "gpu0 has 134,217,728 bytes less free than before; the driver keeps a block of managed memory"
    )


class NotesStreams(SimDriver):
    """Keeps the stream of each attachment and prefetch."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.attached, self.prefetched = dict[int, int](), dict[int, int]()

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        self.attached[address] = stream
        super().stream_attach_mem_async(stream, address, flags)

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        self.prefetched[address] = stream
        super().mem_prefetch_async(address, size, location, stream)


def test_memory_is_prefetched_in_the_stream_that_it_is_attached_to() -> None:
    with NotesStreams(MACHINE) as driver:
        driver.init()
        assert apply(run_request(MANAGED, MACHINE), Ledger(driver)).outcome == "ok"
        assert len(driver.attached) == 1
        assert driver.prefetched == {**dict.fromkeys(driver.prefetched, 0), **driver.attached}


def test_an_event_is_created_for_other_processes_only_if_it_is_exported() -> None:
    text = "events: {own: {device: gpu0}, shown: {device: gpu0}}\nexports: {s: {event: shown, via: ipc}}\n"
    with built(plan_of(text, MACHINE), MACHINE) as layout:
        live, handles = layout.execution.layout, layout.execution.layout.of(EVENT_HANDLES)
        with current(layout.ledger, live.contexts[0]):
            assert layout.ledger.ipc_get_event_handle(handles["shown"])
            with pytest.raises(DriverError):
                layout.ledger.ipc_get_event_handle(handles["own"])


def test_an_own_object_in_the_place_of_an_imported_one_is_checked_as_the_object() -> None:
    text = """
processes:
  rank:
    count: 1
    buffers: {data: {location: gpu0, size: 1MiB}}
    events: {done: {device: gpu0}}
    exports: {data: {buffer: data, via: ipc}, done: {event: done, via: ipc}}
    imports: {all: {from: rank.data}, dones: {from: rank.done}}
"""
    with built(plan_of(text, MACHINE).processes["rank.0"], MACHINE) as layout:
        found = {(each.aspect, each.subject): each for each in layout.execution.check()}
        for own, other in ((("buffer", "data"), ("buffer", "all.0")), (("event", "done"), ("event", "dones.0"))):
            assert found[other].expected == found[other].observed == found[own].observed


@pytest.mark.parametrize(("error", "name"), [("INVALID_CONTEXT", "cuMemGetAddressRange"), ("NOT_FOUND", "")])
def test_the_check_of_a_buffer_fails_with_every_error_but_that_of_memory_without_access(error: str, name: str) -> None:
    with SimDriver(MACHINE) as driver:
        driver.init()
        failing = Failing(driver, 1, error=f"CUDA_ERROR_{error}", only={"mem_get_address_range"})
        report = apply(run_request("buffers: {b: {location: gpu0, size: 1MiB}}\n", MACHINE), ledger := Ledger(failing))
    assert ledger.empty
    assert (report.outcome, name in str(report.failure and report.failure.error)) == (
        ("failed", True) if name else ("different", True)
    )


EVERY = """
pinned: {own: {size: 64KiB, accessed_by: gpu1}, file: {file: /dev/shm/x, size: 4096B, accessed_by: gpu1}}
buffers: {b: {location: gpu0, size: 1MiB}, other: {location: gpu1, size: 1MiB}}
managed: {m: {size: 2MiB, prefer: gpu1}}
pools: {p: {location: gpu0}}
allocations: {a: {pool: p, size: 2MiB}}
ranges: {r: {size: 2MiB}}
chunks: {c: {location: gpu0, size: 2MiB}}
map: {r: c}
heaps: {h: {location: gpu0, size: 8MiB}}
access: {r: {gpu0: rw}, h: {gpu0: rw}}
"""


def test_a_resource_that_cannot_be_released_keeps_what_it_uses() -> None:
    used = {
        name: kept
        for step in plan_of(FRAME + EVERY, MACHINE).steps
        if (name := step.leak_name()) and (kept := step.blocks())
    }
    waits = used.pop("wait of gpu0")
    assert used == {
        **dict.fromkeys(
            ("mapped buffer frame", "mapped buffer frame.y", "mapped buffer frame.uv"), ("external memory frame",)
        ),
        "registered memory file": ("mapped file of file",),
        "allocation a": ("pool p",),
        "mapping of c in r at 0x0": ("range r",),
        "memory of heap h": ("range h",),
    }
    contexts = {f"{what} of gpu{device}" for what in ("context", "kernels") for device in (0, 1)}
    external = {
        "external memory frame",
        "semaphore ready",
        *(name for name in used if name.startswith("mapped buffer")),
    }
    host = {"managed memory m", "page-locked memory own", "registered memory file"}
    assert set(waits) == contexts | external | host | {
        "buffer b",
        "allocation a",
    }  # and what is of the other GPU alone goes


@pytest.mark.parametrize(("error", "outcome"), [("UNKNOWN", "failed"), ("INVALID_VALUE", "different")])
def test_a_mapping_is_no_difference_because_its_query_fails(error: str, outcome: str) -> None:
    """Only one error means that nothing is mapped. A chunk that is mapped twice is queried alone."""
    chunk = "chunks: {c: {location: gpu0, size: 2MiB}}"
    text = f"ranges: {{r: {{size: 4MiB}}}}\n{chunk}\nmap: {{r: [c, c]}}\naccess: {{r: {{gpu0: rw}}}}\n"
    with SimDriver(MACHINE) as driver:
        driver.init()
        failing = Failing(driver, 2, error=f"CUDA_ERROR_{error}", only={"mem_retain_allocation_handle"})
        report = apply(run_request(text, MACHINE), ledger := Ledger(failing))
    assert (report.outcome, ledger.empty) == (outcome, True)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_external_memory_is_mapped_read_signalled_and_released(check: Check) -> None:
    with camera(MACHINE) as owner:
        report, ledger, _ = apply_with_owner(FRAME, owner, check=check)
        assert (report.outcome, ledger.empty, owner.attached) == ("ok", True, 0), report
        found = tallied(report)
        assert [found[each] for each in ("external", "wait", "readable", "signal")] == [(3, 3), (1, 1), (6, 6), (1, 1)]
        assert external_api.counter(owner.given["ready"]) == 2
        assert external_api.read(owner.given["frame"], 0, 8 * MiB) == BYTES.ljust(8 * MiB, b"\0")
        (note,) = [note for note in report.notes if "camera" in note]
        mine = f"frame and ready are camera's (process {os.getpid()})"
        assert note == f"{mine}; their descriptors were copied, and the copies closed"


def test_without_a_check_nothing_waits_reads_or_signals() -> None:
    with camera(MACHINE, signalled=0) as owner:
        report, _, _ = apply_with_owner(FRAME, owner, check="none")
        assert report.outcome == "ok"
        assert external_api.counter(owner.given["ready"]) == 0


def test_semaphores_of_several_gpus_and_types_in_one_layout() -> None:
    text = """
semaphores:
  late: {from: camera/timeline, via: timeline_fd, device: gpu1, wait: 2}
  start: {from: camera/timeline, via: timeline_fd, device: gpu0, wait: 1, signal: 2}
  first: {from: camera/timeline, via: timeline_fd, device: gpu1, signal: 1}
  take: {from: camera/binary, via: opaque_fd, device: gpu0, wait: true}
  give: {from: camera/other, via: opaque_fd, device: gpu0, signal: true}
"""
    made = {name: external_api.make_semaphore(timeline=name == "timeline") for name in ("timeline", "binary", "other")}
    external_api.signal(made["binary"])
    with InProcessProducer(made) as owner:
        report, ledger, _ = apply_with_owner(text, owner)
        assert (report.outcome, ledger.empty) == ("ok", True), report
        assert [external_api.counter(fd) for fd in made.values()] == [2, 0, 1]
        assert tallied(report)["stream"] == (2, 2)


def test_every_failing_call_is_undone_or_reported_as_a_leak() -> None:
    text = FRAME + MANAGED
    with camera(MACHINE) as owner:
        _, _, failing = apply_with_owner(text, owner)
        calls = failing.calls
        files = [os.fstat(fd).st_ino for fd in owner.given.values()]
        descriptors = os.listdir("/proc/self/fd")
        for at in range(1, calls + 1):
            report, ledger, failing = apply_with_owner(text, owner, at=at)
            where = f"call {at} of {calls}, {failing.failed}: {report.outcome}, {report.failure}, {report.leaks}"
            if report.leaks:
                assert (report.exit_code, failing.failed in UNDO) == (5, True), where
                assert sum(ledger.counts().values()) == sum(1 + len(leak.stays) for leak in report.leaks), where
            else:
                assert (report.exit_code, ledger.empty) == (4, True), where
            assert [os.fstat(fd).st_ino for fd in owner.given.values()] == files, where
            assert is_intact(owner.given["frame"], MACHINE), where
            assert owner.attached == 0, where
        assert os.listdir("/proc/self/fd") == descriptors


NO_MEMORY = "received for frame is not external memory, or belongs to a GPU other than gpu0"


def _pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _socket() -> int:
    return socket.socket().detach()


def _null() -> int:
    return os.open(os.devnull, os.O_RDWR)


def _other_gpu() -> int:
    return external_api.allocate(uuid(MACHINE, 1), 8 * MiB)


def _small() -> int:
    return external_api.allocate(uuid(MACHINE), 4 * MiB)


@pytest.mark.parametrize(
    ("made", "step", "cause"),
    [
        (_pipe, "import memory frame", NO_MEMORY),
        (_socket, "import memory frame", NO_MEMORY),
        (_null, "import memory frame", NO_MEMORY),
        (_other_gpu, "import memory frame", NO_MEMORY),
        (_small, "map buffer frame", "frame is smaller than the 8MiB that the spec declares"),
    ],
)
def test_wrong_memory_descriptors_are_reported_with_entry_and_cause(
    made: Callable[[], int], step: str, cause: str
) -> None:
    with InProcessProducer({"frame": made(), "ready": external_api.make_semaphore(timeline=True, value=1)}) as owner:
        before = os.fstat(owner.given["frame"])
        report, ledger, _ = apply_with_owner(FRAME, owner)
        assert (report.exit_code, ledger.empty) == (4, True), report
        assert report.failure
        assert (report.failure.step, report.failure.path[:2]) == (step, ("external", "frame"))
        assert cause in (report.failure.cause or "")
        assert os.fstat(owner.given["frame"]).st_ino == before.st_ino


@pytest.mark.parametrize("made", [_pipe, _socket, _null])
def test_wrong_semaphore_descriptors_are_reported_with_entry_and_cause(made: Callable[[], int]) -> None:
    with camera(MACHINE) as owner:
        os.close(owner.given["ready"])
        owner.given["ready"] = made()
        report, ledger, _ = apply_with_owner(FRAME, owner)
        assert (report.exit_code, ledger.empty) == (4, True), report
        assert report.failure
        assert (report.failure.step, report.failure.path) == ("import semaphore ready", ("semaphores", "ready"))
        assert "received for ready is not a semaphore" in (report.failure.cause or "")


def test_a_closed_descriptor_is_reported() -> None:
    with camera(MACHINE) as owner:
        os.close(owner.given.pop("frame"))
        report, ledger, _ = apply_with_owner(FRAME, InProcessProducer({**owner.given, "frame": 900}))
        assert (report.exit_code, ledger.empty) == (4, True), report
        assert report.failure
        assert report.failure.step == "copy descriptor frame"
        assert report.failure.error == "camera/frame: the received descriptor cannot be duplicated: Bad file descriptor"


def test_a_copy_of_a_received_descriptor_is_closed_on_exec() -> None:
    with InProcessProducer({"frame": _null()}) as owner:
        os.set_inheritable(owner.given["frame"], True)
        fd = HandleReference("camera", "frame", 0, "camera/frame").duplicate_descriptor(owner)
        assert not os.get_inheritable(fd)
        os.close(fd)


class Reuses(SimDriver):
    """Opens another file with the descriptor number that a failed import has closed."""

    def __init__(self, machine: Machine, file: Path) -> None:
        super().__init__(machine)
        self.file, self.opened = file, -1

    def import_external_memory(self, fd: int, *args: object, **kwargs: object) -> int:
        try:
            return super().import_external_memory(fd, *args, **kwargs)  # type: ignore[arg-type]
        finally:
            self.opened = os.open(self.file, os.O_RDONLY)
            assert self.opened == fd


def test_a_reused_descriptor_number_is_not_closed(tmp_path: Path) -> None:
    """Fact 54."""
    file = tmp_path / "theirs"
    file.write_bytes(BYTES)
    with (
        InProcessProducer({"frame": _null(), "ready": external_api.make_semaphore(timeline=True)}) as owner,
        Reuses(MACHINE, file) as sim,
    ):
        sim.init()
        report = apply(run_request(FRAME, MACHINE), Ledger(sim), handle_source=owner)
        assert os.pread(sim.opened, len(BYTES), 0) == BYTES
        os.close(sim.opened)
        assert report.failure
        assert report.failure.step == "import memory frame"


@pytest.mark.parametrize("size", ["1B", "4095B", "4097B"])
def test_managed_memory_smaller_than_a_page_has_its_own_advice(size: str) -> None:
    """Fact 70."""
    a, b = "prefer: gpu0, read_mostly: true, accessed_by: host", "prefer: host, accessed_by: gpu0"
    report, ledger, _ = apply_with_owner(f"managed: {{a: {{size: {size}, {a}}}, b: {{size: {size}, {b}}}}}")
    assert ledger.empty
    assert report.outcome == "ok"
    assert tallied(report)["preferred"] == (2, 2)
