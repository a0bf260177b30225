"""Memory files (memfd) behind shared objects, and the IPC and fabric handles that name them.

The name of each file describes its object.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from memtopo.common.errors import on_failure
from memtopo.common.files import closing_fd
from memtopo.common.processes import process_stat
from memtopo.driver.types import PROPERTY_FLAGS
from memtopo.drivers.sim.calls import RefusedCall, invalid, refuse_if

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_SPARE = 200  # descriptors that the process may need beside
_NAME = re.compile(
    r"/memfd:memtopo (chunk|multicast|allocation|event|memory|timeline|binary|dmabuf|pool) ([0-9]{1,19}) ([0-9]{1,19})"
    r" ((?:gpu|node) [0-9a-f]{1,32}) ([01](?: [01])*) ([0-9a-f]{16}) \(deleted\)"
)


class Tag(NamedTuple):
    """Description of the object in a file, encoded in the file's name, so that it travels with the descriptor.

    `kind` is chunk, multicast, allocation, event or pool, dmabuf for memory of several of these, or for objects of an
    external API memory, timeline or binary (semaphores).
    `location` is the GPU by UUID or the NUMA node, since ordinals differ between processes (fact 38); it has no meaning
    for a semaphore. `nonce` distinguishes the file from every other file.
    """

    kind: str
    size: int
    granule: int
    location: str
    nonce: str
    flags: tuple[str, ...] = ()
    """Properties of a chunk that are true."""

    @property
    def name(self) -> str:
        flags = " ".join(str(int(word in self.flags)) for word in PROPERTY_FLAGS)
        return f"memtopo {self.kind} {self.size} {self.granule} {self.location} {flags} {self.nonce}"


def nonce() -> str:
    """Return 16 hexadecimal digits that no other file has."""
    return os.urandom(8).hex()


def make(tag: Tag) -> int:
    """Create a file of the tag's size, sealed against shrinking and growing."""
    fd = os.memfd_create(tag.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with on_failure(os.close, fd):
        os.ftruncate(fd, tag.size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def read_tag(fd: str) -> Tag | None:
    """Return the tag of the file behind a path of `/proc/PID/fd`; None for another file, or if there is none."""
    try:
        match = _NAME.fullmatch(str(Path(fd).readlink()))
    except (OSError, ValueError):
        return None
    if match is None:
        return None
    kind, size, granule, location, flags, nonce = match.groups()
    set_ = tuple(word for word, flag in zip(PROPERTY_FLAGS, flags.split(), strict=False) if flag == "1")
    return Tag(kind, int(size), int(granule), location, nonce, set_)


_numbers = count()
_alive: set[int] = set()
"""Numbers of the simulators of this process that run."""


class Files:
    """Files that one simulator has open; the remaining ones are closed with it.

    `number` tells the simulators of one process apart.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._open: set[int] = set()
        _alive.add(self.number)
        self._close = weakref.finalize(self, _close_all, self._open, self.number)

    def create(self, tag: Tag) -> int:
        """Create a file of the tag's size; returns its descriptor."""
        self._make_room()
        fd = make(tag)
        self._open.add(fd)
        return fd

    def duplicate(self, fd: int) -> int:
        """Duplicate the descriptor of an open file."""
        self._make_room()
        another = os.dup(fd)
        self._open.add(another)
        return another

    def adopt(self, path: str, *kinds: str) -> tuple[int, Tag] | None:
        """Open the file behind a path of `/proc/PID/fd`; returns a new descriptor and the tag.

        Returns None if it is no file of these kinds, also if it was replaced in the meantime.
        """
        # Checked before it is opened, too: opening a device file could have side effects.
        if (tag := read_tag(path)) is None or tag.kind not in kinds:
            return None
        self._make_room()
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        self._open.add(fd)
        if read_tag(f"/proc/self/fd/{fd}") == tag and _is_whole(fd, tag):
            return fd, tag
        self.close(fd)
        return None

    def adopt_descriptor(self, fd: int, *kinds: str) -> tuple[int, Tag] | None:
        """Open the file behind a descriptor of this process, as `adopt` does; None for a dma-buf."""
        return None if is_dma_buf(fd) else self.adopt(f"/proc/self/fd/{fd}", *kinds)

    def adopt_dma_buf(self, fd: int) -> tuple[int, Tag] | None:
        """Open the file behind a dma-buf, as `adopt` does; None for any other descriptor."""
        return self.adopt(f"/proc/self/fd/{fd}", "chunk", "allocation", "dmabuf") if is_dma_buf(fd) else None

    def close(self, fd: int) -> None:
        """Close one file."""
        self._open.remove(fd)
        os.close(fd)

    def _make_room(self) -> None:
        """Raise the limit of open files once there are many: on hardware, sharing keeps no descriptor open."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard and len(self._open) + _SPARE > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def close_all(self) -> None:
        """Close every file; a second call does nothing."""
        self._close()


@contextmanager
def exclusive(fd: int) -> Iterator[int]:
    """Lock the file behind a descriptor against other threads and processes; yields a descriptor of its own."""
    # Reopened: a lock belongs to the open file description, which passed-on descriptors share.
    with closing_fd(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)) as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        yield own


def dma_buf(fd: int) -> int:
    """Return a dma-buf of a file: a new descriptor, which differs from the file's others in that it is read-only."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def is_dma_buf(fd: int) -> bool:
    """Return whether an open descriptor is a dma-buf, which no call imports, of whatever file it is."""
    try:
        return fd >= 0 and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    except OSError:
        return False


def _is_whole(fd: int, tag: Tag) -> bool:
    """Return whether the file has its tag's size and is sealed: any process may give a file such a name."""
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # no file in memory at all
        return False
    return os.fstat(fd).st_size == tag.size and sealed & SEALS == SEALS


def _close_all(files: set[int], number: int) -> None:
    _alive.discard(number)
    while files:
        os.close(files.pop())


def check_descriptor(fd: int) -> int:
    """Return a number that fits the driver's parameter for a descriptor, which may be negative; refuse any other."""
    if not isinstance(fd, int) or not -(1 << 31) <= fd < 1 << 31:
        raise invalid("not a file descriptor")
    return fd


def close_descriptor(fd: int) -> None:
    """Close a descriptor whose ownership was passed to the driver, if it is open (fact 54)."""
    with suppress(OSError):
        os.close(fd)


_HANDLE = Struct("=8sQQQ8sQ16x")  # magic, pid, start time, fd, nonce, number of the simulator
_MAGIC = b"memtopo\0"
_INVALID = "CUDA_ERROR_INVALID_VALUE"


class SharedHandle(NamedTuple):
    """A file of a process: pid and start time, since pids are reused, descriptor, nonce, and the simulator's number."""

    pid: int
    start_time: int
    fd: int
    nonce: str
    number: int

    def is_of(self, files: Files) -> bool:
        """Return whether this simulator exported it, and none of another pid namespace with the same numbers."""
        return self.pid == os.getpid() and self.number == files.number and self.is_alive

    @property
    def is_alive(self) -> bool:
        """True if the exporting process, which may be simulated in this one, still runs."""
        if self.pid == os.getpid() and self.number not in _alive:
            return False
        found = process_stat(self.pid)
        return found is not None and found.start == self.start_time


def pack_handle(files: Files, fd: int, tag: Tag) -> bytes:
    """Return the 64 bytes that name an open file of a simulator; always the same for one file."""
    pid = os.getpid()
    found = process_stat(pid)
    start = found.start if found else 0
    return _HANDLE.pack(_MAGIC, pid, start, fd, bytes.fromhex(tag.nonce), files.number)


def check_handle_size(handle: int | bytes) -> bytes:
    """Return a handle of the right size; refuses any other."""
    if not isinstance(handle, bytes) or len(handle) != _HANDLE.size:
        raise invalid(f"a shared handle has {_HANDLE.size} bytes")
    return handle


def unpack_handle(handle: bytes, error: str = _INVALID) -> SharedHandle:
    """Decode a handle; refuses malformed bytes with an error."""
    magic, pid, start_time, fd, nonce, number = _HANDLE.unpack(check_handle_size(handle))
    refuse_if(magic != _MAGIC, "the bytes are not a handle of a simulator", error)
    return SharedHandle(pid, start_time, fd, nonce.hex(), number)


def open_handle(
    shared: SharedHandle, files: Files, *kinds: str, error: str = _INVALID, exporter_gone: str = ""
) -> tuple[int, Tag]:
    """Open the file that a handle names, of one of some kinds; returns a new descriptor and the tag.

    Refuses with `error` if the object is gone, and if its process has ended with `exporter_gone`, where that is given.
    """
    gone = "the process that shared it has ended, or is in another pid namespace"
    refuse_if(not shared.is_alive, gone, exporter_gone or error)
    found = files.adopt(f"/proc/{shared.pid}/fd/{shared.fd}", *kinds)
    if found is None:
        raise RefusedCall(error, f"the process that shared it no longer has this {kinds[0]}")
    if found[1].nonce != shared.nonce:
        files.close(found[0])
        raise RefusedCall(error, f"the process that shared it has another {kinds[0]} there now")
    return found
