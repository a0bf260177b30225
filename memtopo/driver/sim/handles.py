"""Handles of 64 bytes that name a file of another process, by process and descriptor."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from memtopo.driver.sim.calls import Refused, invalid
from memtopo.driver.sim.shared_files import Files, Tag

_HANDLE = Struct("=8sQQQ8s24x")  # magic, pid, start time, fd, nonce
_MAGIC = b"memtopo\0"


class HandleErrors(NamedTuple):
    """Errors for a malformed handle, for one of a process that has ended, and for one of a destroyed object."""

    malformed: str
    exporter_gone: str
    object_gone: str


class SharedHandle(NamedTuple):
    """A file of a process: pid and start time, since pids are reused, and the file's descriptor and nonce."""

    pid: int
    start_time: int
    fd: int
    nonce: str

    @property
    def is_own(self) -> bool:
        """True if this process exported it."""
        return self.pid == os.getpid()

    @property
    def is_alive(self) -> bool:
        """True if the exporting process still runs."""
        return _start_time(self.pid) == self.start_time


def pack(fd: int, tag: Tag) -> bytes:
    """Return the 64 bytes that name an open file of this process; always the same for one file."""
    pid = os.getpid()
    return _HANDLE.pack(_MAGIC, pid, _start_time(pid) or 0, fd, bytes.fromhex(tag.nonce))


def check_size(handle: int | bytes) -> bytes:
    """Return a handle of the right size; refuses any other."""
    if not isinstance(handle, bytes) or len(handle) != _HANDLE.size:
        raise invalid(f"a shared handle has {_HANDLE.size} bytes")
    return handle


def unpack(handle: bytes, errors: HandleErrors) -> SharedHandle:
    """Decode a handle; refuses malformed bytes."""
    magic, pid, start_time, fd, nonce = _HANDLE.unpack(check_size(handle))
    if magic != _MAGIC:
        raise Refused(errors.malformed, "the bytes are no handle of a simulator")
    return SharedHandle(pid, start_time, fd, nonce.hex())


def open_file(shared: SharedHandle, kind: str, files: Files, errors: HandleErrors) -> tuple[int, Tag]:
    """Open the file that a handle names; returns a new descriptor and the tag. Refuses if it is gone."""
    if not shared.is_alive:
        raise Refused(errors.exporter_gone, "the process that shared it is gone")
    found = files.adopt(f"/proc/{shared.pid}/fd/{shared.fd}", kind)
    if found is None:
        raise Refused(errors.object_gone, f"the process that shared it has no such {kind} any more")
    if found[1].nonce != shared.nonce:
        files.close(found[0])
        raise Refused(errors.object_gone, f"the process that shared it has another {kind} there now")
    return found


def _start_time(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None if it has ended, also as a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The process name is in brackets and may contain anything.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
