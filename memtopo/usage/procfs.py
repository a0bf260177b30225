"""Processes in /proc: their owner, start, and open descriptors of NVIDIA's device files, dma-bufs and sockets."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memtopo.common.processes import PROC, process_stat
from memtopo.sharing.sockets import LeaseName, lease_names


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """Descriptors of one device file; an exported chunk is one of /dev/nvidiactl, without size (fact 26)."""

    file: str
    descriptors: int


@dataclass(frozen=True, slots=True)
class DmaBuffer:
    """One dma-buf, of `descriptors` in a process; `inode` is the same in every process that has it.

    `bytes` and `exporter` (a kernel module) are None if the kernel does not show them.
    """

    inode: int | None
    descriptors: int
    bytes: int | None
    exporter: str | None
    name: str | None


_DEVICE = re.compile(r"nvidia[a-z0-9/-]*")
_DMA_BUFFER = re.compile(r"/dmabuf:.*|anon_inode:\[?dmabuf\]?")
_SOCKET = re.compile(r"socket:\[([0-9]+)\]")


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Open descriptors of one process that may keep GPU memory, and the inodes of its sockets."""

    devices: tuple[OpenDevice, ...] = ()
    dma_buffers: tuple[DmaBuffer, ...] = ()
    sockets: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ProcfsProcess:
    """A process in /proc; `since` is in seconds of the epoch. `descriptors` is None without access to them."""

    pid: int
    parent: int
    uid: int | None
    command: str
    start: int
    since: float | None
    descriptors: Descriptors | None

    @property
    def has_devices(self) -> bool:
        """True if it has a device file or a dma-buf open."""
        return bool(self.descriptors and (self.descriptors.devices or self.descriptors.dma_buffers))


@dataclass(frozen=True, slots=True)
class ProcessFiles:
    """/proc and the folder of device files; the places of both are parameters."""

    proc: Path = PROC
    dev: Path = Path("/dev")

    def processes(self) -> Iterator[ProcfsProcess]:
        """Yield all processes that this one sees, by ascending pid."""
        times = (float(line.split()[1]) for line in _lines(self.proc / "stat") if line.startswith("btime "))
        booted = next(times, None)
        for pid in sorted(int(name) for name in os.listdir(self.proc) if name.isdecimal()):
            if found := self._process(pid, booted):
                yield found

    def hides_processes(self) -> bool:
        """Return whether /proc shows the processes of this user alone (its mount option `hidepid`)."""
        for line in _lines(self.proc / "self/mountinfo"):
            before, _, after = line.partition(" - ")
            if after.startswith("proc ") and before.split()[4] == str(self.proc):
                return bool(re.search(r"hidepid=(?!0|off)", after))
        return False

    def leases(self, pids: Iterable[int]) -> dict[int, LeaseName]:
        """Return the leases of processes by the inodes of their sockets, in the network namespaces of all of them."""
        files: dict[str, Path] = {}
        for pid in pids:
            with suppress(OSError):
                files.setdefault(str((self.proc / str(pid) / "ns/net").readlink()), self.proc / str(pid) / "net/unix")
        found: dict[int, LeaseName] = {}
        for file in files.values():
            found |= lease_names(file)
        return found

    def lives(self, pid: int, start: int) -> bool:
        """Return whether the process that started at `start`, in ticks since boot, still has this pid."""
        stat = process_stat(pid, self.proc)
        return stat is not None and stat.start == start

    def _process(self, pid: int, booted: float | None) -> ProcfsProcess | None:
        stat = process_stat(pid, self.proc)
        if stat is None or stat.is_kernel_thread:
            return None
        since = None if booted is None else booted + stat.start / os.sysconf("SC_CLK_TCK")
        folder = self.proc / str(pid)
        # The effective user: the owner of the folder is root for some processes.
        ids = dict(_fields(folder / "status")).get("Uid", "").split()
        uid = int(ids[1]) if len(ids) > 1 else None
        return ProcfsProcess(pid, stat.parent, uid, stat.command, stat.start, since, self._descriptors(folder))

    def _descriptors(self, folder: Path) -> Descriptors | None:
        try:
            links = dict(_links(folder / "fd"))
        except PermissionError:
            return None
        except OSError:  # it has ended
            return Descriptors()
        sockets = (match for match in map(_SOCKET.fullmatch, links.values()) if match)
        below = f"{self.dev}/"
        names = Counter(target.removeprefix(below) for target in links.values() if target.startswith(below))
        return Descriptors(
            tuple(OpenDevice(f"/dev/{name}", names[name]) for name in sorted(names) if _DEVICE.fullmatch(name)),
            tuple(_dma_buffers(folder, [fd for fd, target in links.items() if _DMA_BUFFER.fullmatch(target)])),
            frozenset(int(match[1]) for match in sockets),
        )


def _links(folder: Path) -> Iterator[tuple[str, str]]:
    """Descriptors of a process and their targets. Raises `PermissionError` if they may not be read."""
    for fd in sorted(os.listdir(folder), key=int):
        with suppress(FileNotFoundError):  # it was closed
            yield fd, str((folder / fd).readlink())


def _dma_buffers(folder: Path, fds: list[str]) -> Iterator[DmaBuffer]:
    """dma-bufs of a process, each once, with what `fdinfo` shows of them."""
    infos = {fd: dict(_fields(folder / "fdinfo" / fd)) for fd in fds}
    counts = Counter(info.get("ino", fd) for fd, info in infos.items())
    for key, info in {info.get("ino", fd): info for fd, info in infos.items()}.items():
        inode, size = (int(text) if text.isdecimal() else None for text in (info.get("ino", ""), info.get("size", "")))
        yield DmaBuffer(inode, counts[key], size, info.get("exp_name"), info.get("name"))


def _fields(file: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(file):
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
