"""Who uses GPU memory: NVML's numbers, /proc and the holders of layouts, brought together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.driver.types import GpuMemory, GpuUsage, ProcessMemory
from memtopo.sharing.client import Client
from memtopo.sharing.held import Entry, answers
from memtopo.sharing.sockets import name_lease
from memtopo.sharing.status import HeapUse, Importer, Status
from memtopo.usage import Descriptors, DmaBuffer, LayoutUse, ProcessFiles, ProcessUsage, ProcfsProcess, Usage, usage
from tests.helpers.child_process import ChildProcess
from tests.helpers.command_line import MEMTOPO, ROOT, environment
from tests.helpers.memfd_exports import MACHINE, OFFERS

NOTHING = GpuUsage()
BUFFER = DmaBuffer(55, 1, 4096, "nvidia", None)
EXPORTED = sum(offer.size * offer.count for offer in OFFERS) + 4096  # the holder's own "broken" page


def of(found: Usage, pid: int | None) -> list[ProcessUsage]:
    return [each for each in found.processes if each.pid == pid]


def uses(found: Usage, pid: int | None) -> Sequence[LayoutUse]:
    return [use for each in of(found, pid) for use in each.layouts]


def memory_of(pid: int, size: int | None = 1 << 20) -> ProcessMemory:
    return ProcessMemory(0, pid, ("compute",), size)


def test_a_holder_and_its_importers_are_listed_with_their_bytes(start: Callable[..., Any], files: ProcessFiles) -> None:
    holder, importer = start(), start("importer")
    importer.read_line()
    found = usage(NOTHING, answers(Client.status), files)
    (held,), (imported,) = uses(found, holder.pid), uses(found, importer.pid)
    assert (held.layout, held.role, held.holder, held.bytes) == ("kv", "holder", holder.pid, EXPORTED)
    assert (imported.role, imported.holder, imported.bytes) == ("importer", holder.pid, 1000 * 4096)
    assert held.simulated
    assert imported.simulated


def test_an_importer_whose_holder_has_ended_is_an_orphan(start: Callable[..., Any], files: ProcessFiles) -> None:
    """Its socket has the name of the layout and of the holder; its bytes are not known any more."""
    holder, importer = start(), start("importer")
    importer.read_line()
    holder.kill()
    (use,) = uses(usage(NOTHING, answers(Client.status), files), importer.pid)
    assert (use.layout, use.role, use.holder, use.bytes) == ("kv", "orphan", holder.pid, None)
    importer.close_input()
    importer.ended()
    assert uses(usage(NOTHING, answers(Client.status), files), importer.pid) == []


def test_an_importer_of_a_holder_in_another_pid_namespace_is_no_orphan(files: ProcessFiles) -> None:
    """Its lease does not name the process of the holder, whose end is not seen here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lease:
        before = time.time()
        name_lease(lease, "/run/kv.sock", 0)
        (use,) = uses(usage(NOTHING, [], files), os.getpid())
    assert (use.layout, use.role, use.holder) == ("kv", "importer", None)
    assert use.since is not None
    assert before - 1 <= use.since <= time.time()


def test_an_importer_of_a_holder_that_was_not_asked_is_listed_without_bytes(
    start: Callable[..., Any], files: ProcessFiles
) -> None:
    """As of a holder at the path of a socket."""
    holder, importer = start(), start("importer")
    importer.read_line()
    (use,) = uses(usage(NOTHING, [], files), importer.pid)
    assert (use.layout, use.role, use.holder, use.bytes) == ("kv", "importer", holder.pid, None)


def test_a_client_without_handles_is_no_importer(start: Callable[..., Any], files: ProcessFiles) -> None:
    start()
    idle = start("importer", count=0)
    assert idle.read_line()["taken"] == 0
    assert uses(usage(NOTHING, answers(Client.status), files), idle.pid) == []


def test_bytes_of_nvml_belong_to_a_process_with_an_open_device_file(files: ProcessFiles, user: ChildProcess) -> None:
    """In a container a number of NVML may be that of another process outside, which is an entry of its own."""
    other = os.getpid()
    found = usage(GpuUsage(processes=(memory_of(user.pid), memory_of(other), memory_of(1 << 22))), [], files)
    (ours,) = of(found, user.pid)
    assert (ours.memory, ours.uid) == ((memory_of(user.pid),), os.geteuid())
    for pid in (other, 1 << 22):
        (entry,) = of(found, pid)
        assert (entry.memory, entry.uid, entry.command, entry.devices) == ((memory_of(pid),), None, None, None)
    assert any("NVML lists but /proc does not" in each for each in found.unknown)
    assert not any("NVML lists" in each for each in usage(NOTHING, [], files).unknown)


class FilesOfOthers(ProcessFiles, frozen=True):
    """/proc with a process of another user, whose descriptors may not be read."""

    def processes(self) -> Iterator[ProcfsProcess]:
        yield ProcfsProcess(7, 1, 1001, "train", 1.0, None)


def test_bytes_of_nvml_belong_to_a_process_whose_descriptors_cannot_be_read() -> None:
    found = usage(GpuUsage(processes=(memory_of(7),)), [], FilesOfOthers())
    (entry,) = of(found, 7)
    assert (entry.memory, entry.uid, entry.command, entry.devices) == ((memory_of(7),), 1001, "train", None)
    why = "reading them needs root" if os.geteuid() else "the system refuses access to them"
    assert f"descriptors of 1 process: {why}" in found.unknown


def test_a_process_without_any_use_is_not_listed(files: ProcessFiles, user: ChildProcess) -> None:
    found = usage(NOTHING, [], files)
    assert [each.pid for each in found.processes if each.pid in (user.pid, os.getpid())] == [user.pid]


def test_a_child_of_a_holder_that_uses_gpu_memory_belongs_to_its_layout(
    files: ProcessFiles, user: ChildProcess
) -> None:
    """The processes of a layout of several are children of a child of the holder."""
    for holder in (os.getpid(), os.getppid()):
        status = Status("kv", "/run/kv.sock", holder, 0, 0.0, "serving", None, None, MACHINE, (), ())
        assert [use.role for use in uses(usage(NOTHING, [status], files), user.pid)] == ["child"]
        importer = Importer(1, holder, 0, 0.0, 1, 4096, bound=False, taken=())
        imported = replace(status, pid=1 << 22, importers=(importer,))
        assert uses(usage(NOTHING, [imported], files), user.pid) == []


class FilesOfDmaBuffers(ProcessFiles, frozen=True):
    """/proc with a process that has a dma-buf open, and one that has a socket."""

    def processes(self) -> Iterator[ProcfsProcess]:
        for pid, opened in ((7, Descriptors((), (BUFFER,))), (8, Descriptors(sockets=frozenset({1})))):
            yield ProcfsProcess(pid, 1, 1001, "train", 1.0, opened)


def test_a_process_that_has_a_dma_buffer_alone_is_listed_with_it() -> None:
    (entry,) = usage(NOTHING, [], FilesOfDmaBuffers()).processes
    assert (entry.pid, entry.devices, entry.dma_buffers) == (7, (), (BUFFER,))


def test_a_process_of_a_layout_has_the_bytes_of_its_own_heaps(files: ProcessFiles, user: ChildProcess) -> None:
    """It is a child of the holder too, and is listed once; numbers of another pid namespace are not those here."""
    sizes = {("rank.0", "kv"): 4096, ("rank.0", "w"): 512, ("rank.1", "kv"): 1 << 20}
    heaps = tuple(HeapUse(process, heap, 1, 1 << 21, mapped) for (process, heap), mapped in sizes.items())
    ranks = {"rank.0": user.pid, "rank.1": 1 << 22, "idle": 1 << 23}
    status = Status("kv", "/kv.sock", os.getpid(), 0, 0.0, "serving", None, None, MACHINE, (), ())
    status = replace(status, processes=ranks, heaps=heaps)
    found = usage(NOTHING, [status], files)
    listed = [(use.role, use.label, use.bytes) for pid in ranks.values() for use in uses(found, pid)]
    assert listed == [("process", "rank.0", 4608), ("process", "rank.1", 1 << 20), ("process", "idle", None)]
    elsewhere = usage(NOTHING, [replace(status, pid=None, pid_namespace="another")], files)
    assert [use for pid in ranks.values() for use in uses(elsewhere, pid)] == []


def test_an_importer_from_two_layouts_is_listed_for_the_one_that_was_not_asked_too(files: ProcessFiles) -> None:
    importer = Importer(1, os.getpid(), 0, 0.0, 1, 4096, bound=False, taken=())
    status = Status("kv", "/run/kv.sock", os.getppid(), 0, 0.0, "serving", None, None, MACHINE, (), (importer,))
    kinds = socket.AF_UNIX, socket.SOCK_SEQPACKET
    with socket.socket(*kinds) as reported, socket.socket(*kinds) as other:
        name_lease(reported, "/run/kv.sock", os.getppid())
        name_lease(other, "/run/other.sock", 0)
        found = uses(usage(NOTHING, [status], files), os.getpid())
    assert [(use.layout, use.role, use.bytes) for use in found] == [
        ("kv", "importer", 4096),
        ("other", "importer", None),
    ]


def test_importers_of_a_holder_in_another_pid_namespace_have_no_number_here(files: ProcessFiles) -> None:
    """Their numbers are those of other processes here."""
    importer = Importer(1, os.getpid(), 0, 3.5, 1, 4096, bound=False, taken=())
    status = Status("kv", "/kv.sock", None, 0, 1.5, "serving", None, None, MACHINE, (), (importer,))
    found = usage(NOTHING, [replace(status, pid_namespace="another")], files)
    assert [use.role for use in uses(found, None)] == ["holder", "importer"]
    assert uses(found, os.getpid()) == []
    assert [use.since for use in uses(found, None)] == [1.5, 3.5]
    assert [use.role for use in uses(usage(NOTHING, [status], files), os.getpid())] == ["importer"]


def test_what_nvml_and_holders_do_not_report_is_said(files: ProcessFiles) -> None:
    silent = Entry("kv", "unreachable", "/run/kv.sock", error="no answer to 'status' within 2 s")
    gpu = GpuMemory(0, "NVIDIA H200", None, None, None, None, None)
    found = usage(GpuUsage((gpu,), (), ("NVML has no processes",)), [silent], files)
    assert found.gpus == (gpu,)
    assert found.unknown[0] == "NVML has no processes"
    assert found.unknown[-1] == "layout kv: no answer to 'status' within 2 s"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_descriptors_of_another_user_are_said_to_need_root(start: Callable[..., Any], runtime: Path) -> None:
    """A holder of this user is listed all the same."""
    try:
        done = subprocess.run(
            [*MEMTOPO, "who", "--json"], cwd=ROOT, env=environment(XDG_RUNTIME_DIR=""), capture_output=True, check=True,
            user=65534, group=65534, extra_groups=[],
        )  # fmt: skip
    except PermissionError:
        pytest.skip("another user cannot run the Python of the tests, whose folder is private")
    assert any(each.endswith("reading them needs root") for each in json.loads(done.stdout)["unknown"])


def test_a_container_is_said_to_hide_the_processes_outside(user: ChildProcess, dev: Path) -> None:
    program = (
        "import json, sys; from pathlib import Path; from memtopo.driver.types import GpuUsage;"
        "from memtopo.usage import usage; from memtopo.usage import ProcessFiles;"
        "found = usage(GpuUsage(), [], ProcessFiles(dev=Path(sys.argv[1])));"
        "print(json.dumps([len(found.processes), found.unknown]))"
    )
    command = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("the system allows no pid namespace here")
    done = subprocess.run(
        [*command, sys.executable, "-c", program, str(dev)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        check=True,
    )
    processes, unknown = json.loads(done.stdout)
    assert processes == 0
    assert any(each.startswith("processes outside of this container") for each in unknown)
