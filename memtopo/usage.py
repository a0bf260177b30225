"""Processes that use GPU memory, by what NVML, /proc, locks and the holders of layouts say.

From /proc are the owner and the start of a process, and its open descriptors of NVIDIA's device files, dma-bufs and
sockets.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.files import text_of
from memtopo.common.processes import PROC, command_of, in_pid_namespace, process_stat
from memtopo.common.units import by_key
from memtopo.driver.types import GpuMemory, GpuUsage, ProcessMemory
from memtopo.sharing.held import Entry
from memtopo.sharing.offers import exported_bytes
from memtopo.sharing.sockets import LeaseName, lease_names
from memtopo.sharing.status import Status


class OpenDevice(Struct, frozen=True):
    """Descriptors of one device file; an exported chunk is one of /dev/nvidiactl, without size (fact 26)."""

    file: str
    descriptors: int


class DmaBuffer(Struct, frozen=True):
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


class Descriptors(Struct, frozen=True):
    """Open descriptors of one process that may keep GPU memory, and the inodes of its sockets."""

    devices: tuple[OpenDevice, ...] = ()
    dma_buffers: tuple[DmaBuffer, ...] = ()
    sockets: frozenset[int] = frozenset()


class ProcfsProcess(Struct, frozen=True):
    """A process in /proc; `since` is in seconds of the epoch. `descriptors` is None without access to them."""

    pid: int
    parent: int
    uid: int | None
    command: str
    since: float | None
    descriptors: Descriptors | None

    @property
    def has_devices(self) -> bool:
        """True if it has a device file or a dma-buf open."""
        return bool(self.descriptors and (self.descriptors.devices or self.descriptors.dma_buffers))


class ProcessFiles(Struct, frozen=True):
    """/proc and the folder of device files; the places of both are parameters."""

    proc: Path = PROC
    dev: Path = Path("/dev")

    def processes(self) -> Iterator[ProcfsProcess]:
        """Yield all processes that this one sees, by ascending pid."""
        lines = text_of(self.proc / "stat").splitlines()
        booted = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
        for pid in sorted(int(name) for name in os.listdir(self.proc) if name.isdecimal()):
            if found := self._process(pid, booted):
                yield found

    def hides_processes(self) -> bool:
        """Return whether /proc shows the processes of this user alone (its mount option `hidepid`)."""
        for line in text_of(self.proc / "self/mountinfo").splitlines():
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
        command = command_of(pid, stat.command, self.proc)
        return ProcfsProcess(pid, stat.parent, uid, command, since, self._descriptors(folder))

    def _descriptors(self, folder: Path) -> Descriptors | None:
        links: dict[str, str] = {}
        try:
            for fd in sorted(os.listdir(folder / "fd"), key=int):
                with suppress(FileNotFoundError):  # it was closed
                    links[fd] = str((folder / "fd" / fd).readlink())
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


def _dma_buffers(folder: Path, fds: list[str]) -> Iterator[DmaBuffer]:
    """dma-bufs of a process, each once, with what `fdinfo` shows of them."""
    infos = {fd: dict(_fields(folder / "fdinfo" / fd)) for fd in fds}
    counts = Counter(info.get("ino", fd) for fd, info in infos.items())
    for key, info in {info.get("ino", fd): info for fd, info in infos.items()}.items():
        inode, size = (int(text) if text.isdecimal() else None for text in (info.get("ino", ""), info.get("size", "")))
        yield DmaBuffer(inode, counts[key], size, info.get("exp_name"), info.get("name"))


def _fields(file: Path) -> Iterator[tuple[str, str]]:
    for line in text_of(file).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()


class LayoutUse(Struct, frozen=True):
    """Part of a process in a held layout: it holds it, is a process of it or a child of the holder, or imports from it.

    `holder` is the process that holds it, None if that is of another pid namespace. `bytes` are those of all exports
    for a holder, those in heaps for a process of the layout, and those of received handles for an importer; None if
    they are not known. Times are in seconds of the epoch. The holder of an `orphan` has ended: the importer may keep
    memory that no process exports any more. `label` is that of a process in the layout.
    """

    layout: str
    role: Literal["holder", "process", "child", "importer", "orphan"]
    holder: int | None
    since: float | None
    bytes: int | None
    simulated: bool | None
    socket: str | None
    label: str | None = None


class ProcessUsage(Struct, frozen=True):
    """A process that uses GPU memory, or may.

    `pid` is None for an importer of another pid namespace. A process that is not in /proc has neither `uid`,
    `command` nor `since`, the time of its start. `devices` and `dma_buffers` are None if its descriptors could not be
    read.
    """

    pid: int | None
    uid: int | None = None
    command: str | None = None
    since: float | None = None
    memory: tuple[ProcessMemory, ...] = ()
    devices: tuple[OpenDevice, ...] | None = None
    dma_buffers: tuple[DmaBuffer, ...] | None = None
    layouts: tuple[LayoutUse, ...] = ()


class Usage(Struct, frozen=True):
    """All processes that were found, by ascending pid; `unknown` are sentences about what could not be read."""

    gpus: tuple[GpuMemory, ...]
    processes: tuple[ProcessUsage, ...]
    unknown: tuple[str, ...]


_FOLDERS = ("run/user/*/memtopo", "tmp/memtopo-*")
_LOCK = ".sock.lock"


def locked_layouts(root: Path = Path("/"), proc: Path = PROC) -> Iterator[tuple[int, LayoutUse]]:
    """Yield layouts in the runtime folders of all users that may be read, each with the process that has its lock.

    A lock counts only if it belongs to the user of that process, since any user may make such a folder in /tmp. Locks
    beside that of a layout, `kv.join.sock.lock`, are no layouts.
    """
    # Processes by the device and the inode of a file that they have locked.
    owners: dict[tuple[int, int, int], int] = {}
    for words in map(str.split, text_of(proc / "locks").splitlines()):
        if words[1:2] == ["FLOCK"]:
            major, minor, inode = words[5].split(":")
            owners[int(major, 16), int(minor, 16), int(inode)] = int(words[4])
    for file in sorted(file for pattern in _FOLDERS for file in root.glob(f"{pattern}/*{_LOCK}")):
        if "." in (layout := file.name.removesuffix(_LOCK)):
            continue
        with suppress(OSError):
            found = file.lstat()
            pid = owners.get((os.major(found.st_dev), os.minor(found.st_dev), found.st_ino))
            if pid and (proc / str(pid)).stat().st_uid == found.st_uid:
                socket = str(file.with_suffix(""))
                yield pid, LayoutUse(layout, "holder", pid, None, None, None, socket)


Uses = Mapping[int, Sequence[LayoutUse]]
"""Layouts by process; 0 is any process of another pid namespace."""


def usage(
    memory: GpuUsage,
    layouts: Iterable[Status | Entry],
    files: ProcessFiles | None = None,
    locked: Iterable[tuple[int, LayoutUse]] = (),
) -> Usage:
    """Combine what NVML and the holders report, and the `locked` layouts of others, with /proc, which is read here.

    A number of NVML is that of a process in /proc only if the process has a device file open, or if its descriptors
    cannot be read: in a container NVML may use the numbers of the host.
    """
    files = files or ProcessFiles()
    known = list(layouts)
    processes = {each.pid: each for each in files.processes()}
    confirmed = by_key((each.pid, each) for each in memory.processes if _is_of(each, processes))
    elsewhere = by_key((each.pid, each) for each in memory.processes if not _is_of(each, processes))
    reported = list(_reported(each for each in known if isinstance(each, Status)))
    sockets = {use.socket for _, use in reported}
    for entry in known:  # processes of a layout that still have memory after the end of its coordinator
        if isinstance(entry, Entry) and entry.end:
            for label, pid in entry.end.remaining.items():
                reported.append((pid, LayoutUse(entry.name, "process", None, None, None, None, entry.socket, label)))
    reported += [(pid, use) for pid, use in locked if use.socket not in sockets]
    by_process = by_key(reported)
    leased, children = _leased(by_process, processes, files), _children(by_process, processes, confirmed)
    uses = by_key([*reported, *leased, *children])
    listed = {pid for pid, each in processes.items() if each.has_devices} | {*confirmed, *uses}
    found = [
        *(ProcessUsage(None, layouts=(use,)) for use in uses.get(0, ())),
        *(_process(pid, confirmed.get(pid, ()), uses.get(pid, ()), processes.get(pid)) for pid in listed - {0}),
        *(ProcessUsage(pid, memory=tuple(each)) for pid, each in elsewhere.items()),
    ]
    unreachable = [f"layout {each.name}: {each.end or each.reason}" for each in known if isinstance(each, Entry)]
    reasons = (*memory.unknown, *_unknown(processes.values(), files, named=bool(elsewhere)), *unreachable)
    return Usage(memory.gpus, tuple(sorted(found, key=lambda each: each.pid or 0)), reasons)


def _process(
    pid: int, memory: Iterable[ProcessMemory], layouts: Iterable[LayoutUse], process: ProcfsProcess | None
) -> ProcessUsage:
    found = ProcessUsage(pid, memory=tuple(memory), layouts=tuple(layouts))
    if process:
        found = replace(found, uid=process.uid, command=process.command, since=process.since)
    if process and (opened := process.descriptors):
        found = replace(found, devices=opened.devices, dma_buffers=opened.dma_buffers)
    return found


def _is_of(memory: ProcessMemory, processes: Mapping[int, ProcfsProcess]) -> bool:
    """Return whether NVML's number of a process is that of one in /proc."""
    process = processes.get(memory.pid)
    return process is not None and (process.descriptors is None or bool(process.descriptors.devices))


def _reported(statuses: Iterable[Status]) -> Iterator[tuple[int, LayoutUse]]:
    """Yield holders, the processes of their layouts and importers, as the holders report them."""
    for status in statuses:
        size = exported_bytes(status.offers)
        holder, simulated = status.pid or None, status.machine.simulated
        held = LayoutUse(status.name, "holder", holder, status.since, size, simulated, status.socket)
        same = status.pid_namespace == "same"
        yield status.pid or 0, held
        for label, pid in status.processes.items() if same else ():
            sizes = [each.mapped for each in status.heaps if each.process == label]
            yield pid, replace(held, role="process", since=None, bytes=sum(sizes) if sizes else None, label=label)
        for each in status.importers:
            yield (each.pid or 0) if same else 0, replace(held, role="importer", since=each.since, bytes=each.bytes)


def _leased(
    reported: Uses, processes: Mapping[int, ProcfsProcess], files: ProcessFiles
) -> Iterator[tuple[int, LayoutUse]]:
    """Yield importers whose holder has ended, or does not report them."""
    leases = files.leases(processes)
    for process in processes.values() if leases else ():
        sockets = process.descriptors.sockets if process.descriptors else frozenset()
        for lease in (leases[inode] for inode in sorted(sockets & leases.keys())):
            orphan = bool(lease.start) and not files.lives(lease.holder, lease.start)
            holder = lease.holder or None
            if orphan or all(use.holder != holder for use in reported.get(process.pid, ())):
                role: Literal["orphan", "importer"] = "orphan" if orphan else "importer"
                yield process.pid, LayoutUse(lease.layout, role, holder, lease.since, None, None, None)


def _children(
    reported: Uses, processes: Mapping[int, ProcfsProcess], memory: Mapping[int, object]
) -> Iterator[tuple[int, LayoutUse]]:
    """Yield what holders have started and uses GPU memory: the processes of a layout of several."""
    for process in processes.values():
        if process.pid in memory or process.has_devices:
            server = processes.get(process.parent)  # a worker's parent, whose parent is the holder
            for use in (*reported.get(process.parent, ()), *(reported.get(server.parent, ()) if server else ())):
                if use.role == "holder":
                    known = (each.layout for each in reported.get(process.pid, ()))
                    if use.layout not in known:
                        yield process.pid, replace(use, role="child", since=None, bytes=None)


def _unknown(processes: Iterable[ProcfsProcess], files: ProcessFiles, *, named: bool) -> Iterator[str]:
    """Yield what /proc does not show."""
    if unreadable := sum(each.descriptors is None for each in processes):
        why = "reading them needs root" if os.geteuid() else "the system refuses access to them"
        yield f"descriptors of {unreadable:,} process{'' if unreadable == 1 else 'es'}: {why}"
    if files.hides_processes():
        yield "processes of other users: /proc is mounted with hidepid, and shows them only to root"
    if in_pid_namespace(files.proc):
        yield (
            "processes outside of this container: its pid namespace does not show them in /proc, and NVML may omit them"
        )
    if named:
        yield "processes that NVML lists but /proc does not: they may be in another pid namespace"
