"""Runs with pinned memory: allocated, and of files that other programs share."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import memtopo
from memtopo.common.units import KiB, MiB
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import HostFlags
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.pinned.steps import SharedFile, unmap_file
from memtopo.plans.report import Check, Report
from memtopo.run import apply
from tests.helpers.conducted import make_transition
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import tallies
from tests.helpers.specs import plan_of, run, run_request
from tests.run import pinned_rounds_program
from tests.run.test_transition import built

MACHINE = invented(2)
SIZE = 64 * KiB


@pytest.fixture
def file() -> Iterator[int]:
    """A memfd of another program with some bytes."""
    fd = os.memfd_create("memtopo-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, SIZE)
    os.pwrite(fd, bytes(range(256)) * (SIZE // 256), 0)
    yield fd
    os.close(fd)


def path_of(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


def spec(source: str, more: str = "") -> str:
    return f"pinned: {{p: {{file: {source}, size: 16KiB, count: 3, offset: 4096B, accessed_by: [gpu0, gpu1]{more}}}}}"


def applied(text: str, check: Check = "fast") -> Report:
    return run(run_request(text, MACHINE, check), MACHINE).report


def applied_with(driver: Callable[[KernelDriver], KernelDriver], text: str, check: Check = "fast") -> Report:
    """Report of a run with a driver that has a fault."""
    simulator = SimDriver(MACHINE)
    simulator.init()
    with simulator:
        return apply.apply(run_request(text, MACHINE, check), Ledger(driver(simulator)))


def verified(report: Report, aspect: str) -> int:
    """Number of findings of an aspect that were as declared."""
    assert report.checks
    return sum(tally.as_declared for tally in report.checks.tallies if tally.aspect == aspect)


def different(report: Report) -> set[str]:
    """Aspects that were not as declared."""
    assert report.outcome == "different"
    assert report.checks
    return {each.aspect for each in report.checks.differences}


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_file_is_compared_and_keeps_its_bytes(file: int, check: Check) -> None:
    before, descriptors = os.pread(file, SIZE, 0), open_descriptors()
    report = applied(spec(path_of(file)), check)
    assert (report.outcome, report.leaks) == ("ok", ())
    found = tallies(report.checks)["shared file"]
    windows = 3 * 2 * 2  # objects, ends and GPUs
    assert (found.as_declared, found.not_checked) == ((windows, 0) if check == "full" else (0, windows))
    assert verified(report, "device address") == 2
    assert os.pread(file, SIZE, 0) == before
    assert open_descriptors() <= descriptors


def test_a_file_that_may_only_be_read_is_registered_as_read_only(file: int) -> None:
    report = applied(spec(path_of(file), ", read_only: true"))
    assert report.outcome == "ok"
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert applied(spec(path_of(file), ", read_only: true")).outcome == "ok"
    refused = applied(spec(path_of(file)))
    assert (refused.outcome, refused.leaks) == ("failed", ())
    assert "cannot be mapped: operation not permitted" in str(refused.failure)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_allocated_memory_is_verified_from_both_sides(check: Check) -> None:
    text = "pinned: {p: {size: 100B, accessed_by: [gpu0, gpu1]}, q: {size: 4MiB, count: 2, write_combined: true}}"
    report = applied(text, check)
    assert report.outcome == "ok"
    assert verified(report, "flags") == verified(report, "pinned") == 3
    assert verified(report, "both sides") == (6 if check == "fast" else 6 + 2 * 2 + 2 * 2)
    assert verified(report, "every byte" if check == "full" else "bytes") > 0


def unsuitable(folder: Path) -> Iterator[tuple[str, str]]:
    """Paths of things that are no memory to share, each with the reason."""
    (folder / "folder").mkdir()
    yield str(folder / "folder"), "is a folder"
    os.mkfifo(folder / "pipe")
    yield str(folder / "pipe"), "is a pipe"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
    yield str(folder / "s"), "is a socket"
    yield "/dev/zero", "is a device"
    yield str(folder / "nothing"), "no such file or directory"
    (folder / "file").write_bytes(b"")
    yield str(folder / "file") + "/x", "not a directory"
    yield str(folder / "file"), "has 0, and 52KiB of it are declared"
    (folder / "short").write_bytes(bytes(52 * KiB - 1))
    yield str(folder / "short"), "52KiB of it are declared"
    (folder / "loop").symlink_to(folder / "loop")
    yield str(folder / "loop"), "too many levels of symbolic links"


def test_what_is_no_memory_to_share_is_refused_without_waiting(tmp_path: Path) -> None:
    """And nothing stays open"""
    descriptors = open_descriptors()
    for path, why in unsuitable(tmp_path):
        report = applied(spec(path))
        assert (report.outcome, report.exit_code, report.leaks) == ("failed", 4, ()), path
        assert why in str(report.failure), path
        hints = {"is a": "name a file in /dev/shm, or a memfd", "no such": "first start the program that creates it"}
        for part in (part for part in hints if why.startswith(part)):
            assert report.failure
            assert str(report.failure.hint).startswith(hints[part])
    assert open_descriptors() <= descriptors


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(SIZE))
    (tmp_path / "f").chmod(0o400)
    assert "permission denied" in str(applied(spec(str(tmp_path / "f"))).failure)


class Shortening(Forwarder):
    """A driver that shortens the registered file after the registration."""

    file, length = -1, 0

    def mem_host_register(self, address: int, size: int, flags: int) -> None:
        self._driver.mem_host_register(address, size, flags)
        os.truncate(self.file, self.length)


@pytest.mark.parametrize(("check", "length"), [("fast", 4 * KiB), ("full", 4 * KiB), ("fast", 50 * KiB)])
def test_a_file_that_is_shortened_meanwhile_is_reported(file: int, check: Check, length: int) -> None:
    """Without an access behind its end, which would end the process (fact 86)"""
    Shortening.file, Shortening.length = file, length
    report = applied_with(Shortening, spec(path_of(file)), check)
    assert different(report) == ({"file"} if check == "fast" else {"file", "shared file"})
    assert report.leaks == ()


class Elsewhere(Forwarder):
    """A driver whose GPUs see other bytes than the file has."""

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        return tuple(each ^ 1 for each in self._driver.fingerprint(parts))


def test_other_bytes_than_those_of_the_file_are_reported(file: int) -> None:
    report = applied_with(Elsewhere, spec(path_of(file)), "full")
    assert different(report) == {"shared file"}


class Writing(Forwarder):
    """A driver beside a program that writes the file all the time."""

    file = -1

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        found: tuple[int, ...] = self._driver.fingerprint(parts)
        os.pwrite(self.file, bytes(each ^ 1 for each in os.pread(self.file, SIZE, 0)), 0)
        return found


def test_bytes_that_the_other_program_writes_at_the_time_are_not_counted(file: int) -> None:
    Writing.file = file
    report = applied_with(Writing, spec(path_of(file)), "full")
    assert report.outcome == "ok"
    assert verified(report, "shared file") == 0


class WritingOnce(Writing):
    """A driver beside a program that writes the file while the GPU reads it for the first time."""

    done = False

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        found: tuple[int, ...] = self._driver.fingerprint(parts)
        if not self.done:
            self.done = True
            os.pwrite(self.file, bytes(each ^ 1 for each in os.pread(self.file, SIZE, 0)), 0)
        return found


def test_bytes_that_the_other_program_writes_once_are_compared_all_the_same(file: int) -> None:
    WritingOnce.file = file
    report = applied_with(WritingOnce, spec(path_of(file)), "full")
    assert report.outcome == "ok"
    assert verified(report, "shared file") == 3 * 2 * 2


@pytest.mark.parametrize("kind", ["flags", "address"])
def test_other_flags_and_addresses_are_reported(kind: str) -> None:
    class Other(Forwarder):
        def mem_host_get_flags(self, address: int) -> int:
            found: int = self._driver.mem_host_get_flags(address)
            return HostFlags.DEVICEMAP if kind == "flags" else found

        def mem_host_get_device_pointer(self, address: int) -> int:
            return address + (kind == "address")

    report = applied_with(Other, "pinned: {p: {size: 2MiB}}")
    assert different(report) == {"flags" if kind == "flags" else "device address"}


def test_small_memory_in_a_block_of_other_code_is_as_declared() -> None:
    """Fact 74: PORTABLE is that of the first allocation in the block, and changes nothing."""
    with SimDriver(MACHINE) as simulator:
        simulator.init()
        simulator.ctx_push_current(simulator.device_primary_ctx_retain(0))
        simulator.mem_host_alloc(4 * KiB, HostFlags.NONE)
        report = apply.apply(run_request("pinned: {p: {size: 64KiB}}", MACHINE, "fast"), Ledger(simulator))
    assert report.outcome == "ok"
    assert verified(report, "flags") == 1


def test_memory_that_cannot_be_unregistered_stays_mapped(file: int) -> None:
    """The GPUs would go on with its pages (fact 86)"""
    made = run_request(spec(path_of(file)), MACHINE)
    done = run(made, MACHINE, at=1, only={"mem_host_unregister"}, every=True)
    (leak,) = done.report.leaks
    assert (leak.what, leak.stays) == ("registered memory p", ("mapped file of p",))
    assert done.report.exit_code == 5
    assert done.ledger.counts()["registered"] == 1
    assert path_in_maps("memtopo-test")


def test_a_change_that_gives_a_file_back_leaves_none_of_its_objects(file: int) -> None:
    with built(plan_of(spec(path_of(file)), MACHINE), MACHINE) as layout:
        make_transition(layout.execution, plan_of("pinned: {q: {size: 4KiB}}", MACHINE))
        assert list(layout.execution.layout.memory) == ["q"]


def test_a_file_that_cannot_be_unmapped_stays_open(file: int) -> None:
    """The address of its mapping is not that of a page."""
    with pytest.raises(OSError, match="Invalid argument"):
        unmap_file(SharedFile(file, 1, SIZE))
    assert os.fstat(file).st_size == SIZE


def path_in_maps(name: str) -> bool:
    return name in Path("/proc/self/maps").read_text()


def test_a_driver_that_refuses_the_registration_leaves_nothing(file: int) -> None:
    made = run_request(spec(path_of(file)), MACHINE)
    done = run(made, MACHINE, at=1, only={"mem_host_register"})
    assert (done.report.outcome, done.report.exit_code, done.report.leaks) == ("failed", 4, ())
    assert done.ledger.empty


def test_offloaded_bytes_return_from_pinned_memory_and_from_a_file(file: int) -> None:
    os.truncate(file, 32 * MiB)
    text = f"""
ranges: {{kv: {{size: 64MiB}}}}
chunks: {{w: {{location: gpu0, size: 16MiB}}, x: {{location: gpu1, size: 16MiB, count: 3}}}}
map: {{kv: [w, x]}}
access: {{kv: {{gpu0: rw, gpu1: rw}}}}
pinned: {{p: {{size: 48MiB}}, f: {{file: {path_of(file)}, size: 32MiB}}}}
states:
  a: {{offload: {{w: p, "x.0:2": f}}, drop: [x.2]}}
  b: {{offload: {{"x.0:2": p}}}}
"""
    simulator = SimDriver(MACHINE)
    simulator.init()
    with simulator:
        report = apply.apply(replace(run_request(text, MACHINE, "full"), rehearse=True), Ledger(simulator))
    assert (report.outcome, report.leaks) == ("ok", ())
    assert verified(report, "fingerprint") > 0
    assert os.pread(file, MiB, 0) != bytes(MiB)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 100, 129, 4097])
def test_objects_of_any_size_are_compared(file: int, size: int) -> None:
    """From a multiple of 16 on, each once"""
    text = f"pinned: {{p: {{file: {path_of(file)}, size: {size}B, count: 7}}}}"
    report = applied(text, "full")
    assert report.outcome == "ok"
    assert report.checks
    assert verified(report, "shared file") >= (7 if size > 30 else 1)


def test_a_registered_file_is_shared_with_another_process_again_and_again() -> None:
    """Nothing is left in either process, and both find each other's bytes."""
    fd = os.memfd_create("memtopo-test", os.MFD_CLOEXEC)
    os.truncate(fd, pinned_rounds_program.SIZE)
    given, word, rounds = pinned_rounds_program.spec(path_of(fd)), pinned_rounds_program.WORD, 20
    with memtopo.applied(given, machine="h100x1") as layout:
        address = layout.address("ring")
        ctypes.memmove(address + word, b"by other", word)
        before, after = pinned_rounds_program.rounds_elsewhere("h100x1", path_of(fd), rounds)
        assert before == after
        assert int.from_bytes(ctypes.string_at(address, word), "little") == rounds - 1
    os.close(fd)
    assert layout.report
    assert layout.report.outcome == "ok"
