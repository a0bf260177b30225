"""Processes in /proc: real ones with stand-ins for device files, and a tree for what this machine does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memtopo.common.processes import process_stat
from memtopo.sharing.sockets import LeaseName
from memtopo.usage import DmaBuffer, OpenDevice, ProcessFiles, ProcfsProcess
from tests.helpers.child_process import ChildProcess

TICKS = os.sysconf("SC_CLK_TCK")


def of(files: ProcessFiles, pid: int) -> ProcfsProcess:
    (found,) = (each for each in files.processes() if each.pid == pid)
    return found


def proc_tree(folder: Path, *, flags: int = 0, state: str = "S", mount: str = "") -> ProcessFiles:
    """A /proc with process 7, started 5 s after boot, with two descriptors of one dma-buf and one of another."""
    process = folder / "proc" / "7"
    for name in ("fd", "fdinfo"):
        (process / name).mkdir(parents=True)
    rest = ["1", "7", "7", "0", "-1", str(flags), *["0"] * 12, str(5 * TICKS), *["0"] * 30]
    (process / "stat").write_text(f"7 (a) b) {state} {' '.join(rest)}\n")
    (process / "status").write_text("Name:\ta) b\nUid:\t1000\t1001\t1000\t1000\n")
    (folder / "proc" / "stat").write_text("cpu 0\nbtime 1000\n")
    (folder / "proc" / "self").mkdir()
    other = "1 2 0:3 / /other/proc rw - proc proc rw,hidepid=2"
    mounted = f"{other}\n1 2 0:3 / {folder}/proc rw - proc proc rw{mount}\n"
    (folder / "proc" / "self" / "mountinfo").write_text(mounted)
    targets = ["/dmabuf:frame", "/dmabuf:frame", "anon_inode:dmabuf", "/dev/null", "/dev/nvidia0"]
    for number, target in enumerate(targets):
        (process / "fd" / str(number)).symlink_to(target)
    shared = "pos:\t0\nflags:\t02\nino:\t55\nsize:\t4096\ncount:\t3\nexp_name:\tnvidia\nname:\tframe\n"
    for fd in ("0", "1"):
        (process / "fdinfo" / fd).write_text(shared)
    (process / "fdinfo" / "2").write_text("pos:\t0\nino:\t56\nsize:\t8192\ncount:\t1\nexp_name:\tudmabuf\n")
    return ProcessFiles(folder / "proc")


def test_open_device_files_are_counted_by_name(files: ProcessFiles, user: ChildProcess) -> None:
    """Other files of the same folder are not listed."""
    found = of(files, user.pid)
    assert found.descriptors
    assert found.descriptors.devices == (OpenDevice("/dev/nvidia0", 1), OpenDevice("/dev/nvidiactl", 2))
    assert (found.parent, found.uid) == (os.getpid(), os.geteuid())


def test_a_dma_buffer_is_listed_once_with_its_size_and_exporter(tmp_path: Path) -> None:
    found = of(proc_tree(tmp_path), 7)
    assert found.descriptors
    assert found.descriptors.dma_buffers == (
        DmaBuffer(55, 2, 4096, "nvidia", "frame"),
        DmaBuffer(56, 1, 8192, "udmabuf", None),
    )
    assert found.descriptors.devices == (OpenDevice("/dev/nvidia0", 1),)


def test_owner_command_and_start_are_those_of_proc(tmp_path: Path) -> None:
    """A command may contain brackets and blanks; the start is the boot time and the ticks since then."""
    found = of(proc_tree(tmp_path), 7)
    assert (found.command, found.parent, found.uid, found.since) == ("a) b", 1, 1001, 1005.0)


@pytest.mark.parametrize(("flags", "state"), [(0x00200040, "S"), (0, "Z"), (0, "X")])
def test_kernel_threads_and_ended_processes_are_left_out(tmp_path: Path, flags: int, state: str) -> None:
    assert list(proc_tree(tmp_path, flags=flags, state=state).processes()) == []


@pytest.mark.parametrize(
    ("mount", "hidden"), [("", False), (",hidepid=0", False), (",hidepid=off", False), (",hidepid=2", True),
                          (",hidepid=invisible,gid=4", True)],
)  # fmt: skip
def test_hidden_processes_are_known_from_the_mount(tmp_path: Path, mount: str, hidden: bool) -> None:
    assert proc_tree(tmp_path, mount=mount).hides_processes() == hidden


def test_a_process_lives_only_with_the_same_start(files: ProcessFiles, user: ChildProcess) -> None:
    """Pids are reused."""
    stat = process_stat(user.pid)
    assert stat
    assert files.lives(user.pid, stat.start)
    assert not files.lives(user.pid, stat.start + 1)
    user.kill()
    assert not files.lives(user.pid, stat.start)


def test_leases_are_those_in_the_network_namespaces_of_all_processes(tmp_path: Path) -> None:
    leases = {70: LeaseName("kv", 7, 5, 6), 80: LeaseName("kv", 8, 5, 6)}
    for pid, (inode, lease) in zip((7, 8), leases.items(), strict=True):
        for folder in ("ns", "net"):
            (tmp_path / str(pid) / folder).mkdir(parents=True)
        (tmp_path / str(pid) / "ns" / "net").symlink_to(f"net:[{pid}]")
        name = lease.address.replace("\0", "@")
        (tmp_path / str(pid) / "net" / "unix").write_text(f"0000: 00000002 00000000 00000000 0005 01 {inode} {name}\n")
    assert ProcessFiles(tmp_path).leases([7, 8, 9]) == leases
