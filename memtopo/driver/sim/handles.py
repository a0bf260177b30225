"""Handles of 64 bytes that name another process's file: who has it open, and where."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from memtopo.driver.sim.calls import Refused, invalid
from memtopo.driver.sim.shared_files import Files, Tag

_TICKET = Struct("=8sQQQ8s24x")  # magic, pid, birth, fd, nonce
_MAGIC = b"memtopo\0"


class Refusals(NamedTuple):
    """The driver's errors where a handle is none, where its process is gone, and where that holds the thing no more."""

    junk: str
    dead: str
    gone: str


class Ticket(NamedTuple):
    """A process, by its id and when it was born, since ids are used again; and its file, by descriptor and nonce."""

    pid: int
    birth: int
    fd: int
    nonce: str

    @property
    def is_ours(self) -> bool:
        """Whether this process made it."""
        return self.pid == os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether the process that made it still lives."""
        return _birth(self.pid) == self.birth


def write(fd: int, tag: Tag) -> bytes:
    """64 bytes that name an open file of this process; the same ones each time."""
    pid = os.getpid()
    return _TICKET.pack(_MAGIC, pid, _birth(pid) or 0, fd, bytes.fromhex(tag.nonce))


def sized(handle: int | bytes) -> bytes:
    """A handle of the right size; refuses every other."""
    if not isinstance(handle, bytes) or len(handle) != _TICKET.size:
        raise invalid(f"a shared handle has {_TICKET.size} bytes")
    return handle


def read(handle: bytes, refusals: Refusals) -> Ticket:
    """What a handle says; refuses what is none."""
    magic, pid, birth, fd, nonce = _TICKET.unpack(sized(handle))
    if magic != _MAGIC:
        raise Refused(refusals.junk, "the bytes are no handle of a simulator")
    return Ticket(pid, birth, fd, nonce.hex())


def redeem(ticket: Ticket, kind: str, files: Files, refusals: Refusals) -> tuple[int, Tag]:
    """A descriptor of one's own for the file that a ticket names, with its tag; refuses what is not there any more."""
    if not ticket.is_alive:
        raise Refused(refusals.dead, "the process that shared it is gone")
    found = files.adopt(f"/proc/{ticket.pid}/fd/{ticket.fd}", kind)
    if found is None:
        raise Refused(refusals.gone, f"the process that shared it has no such {kind} any more")
    if found[1].nonce != ticket.nonce:
        files.close(found[0])
        raise Refused(refusals.gone, f"the process that shared it has another {kind} there now")
    return found


def _birth(pid: int) -> int | None:
    """When a process began, in ticks since the system did; None where it has ended, waited for or not."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Its name stands in brackets and may hold anything.
    state, *rest = said.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
