"""Tables of the allocations in heaps, which the C library writes and other processes may read meanwhile."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Self

_U64 = ctypes.c_uint64
_MAPPED, _FREED = 1, 2
_TRIES = 10_000
"""Times that a table is read again since an entry has moved: the process that writes it may have died meanwhile."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Allocation(NamedTuple):
    """Allocation in a heap: address and size in bytes, the handle of its chunk (0 if it has none), and its number.

    Numbers count the allocations of a heap from 0 and are not used again.
    """

    address: int
    size: int
    handle: int
    number: int
    mapped: bool


class _Entry(ctypes.Structure):
    _fields_ = [
        *((name, _U64) for name in ("address", "size", "handle", "number")),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class TableHead(ctypes.Structure):
    """Head of a table, before its entries: an odd version while they move."""

    _fields_ = [
        *((name, _U64) for name in ("version", "count", "mapped", "backed")),
        *((name, ctypes.c_int32) for name in ("open", "reserved")),
    ]


class AllocationTable:
    """Table of one heap, in a file in memory with room for so many allocations. `close` closes the file."""

    def __init__(self, fd: int, *, writable: bool) -> None:
        """Map a table that another process has made, or this one; it takes the descriptor over. Raises `OSError`."""
        self.fd = fd
        size = os.fstat(fd).st_size
        try:
            self._memory = mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        except (OSError, ValueError) as error:  # the file is still empty
            os.close(fd)
            raise OSError(errno.EINVAL, f"the table cannot be read: {error}") from error
        self._room = (size - ctypes.sizeof(TableHead)) // ctypes.sizeof(_Entry)
        self.head = TableHead.from_buffer(self._memory) if writable else None

    @classmethod
    def create(cls, layout: str, label: str, room: int) -> Self:
        """Create a table with room for so many allocations, which takes memory as it is filled. Raises `OSError`."""
        fd = os.memfd_create(f"{_name(layout)}{label}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, ctypes.sizeof(TableHead) + room * ctypes.sizeof(_Entry))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, writable=True)

    def allocations(self) -> list[Allocation]:
        """Return the allocations in order of address, without freed ones."""
        for _ in range(_TRIES):
            version, count = self._read_head().version, self._read_head().count
            entries = (_Entry * min(count, self._room)).from_buffer_copy(self._memory, ctypes.sizeof(TableHead))
            if not version % 2 and version == self._read_head().version:
                break
        return sorted(
            Allocation(each.address, each.size, each.handle, each.number, bool(each.flags & _MAPPED))
            for each in entries
            if not each.flags & _FREED
        )

    @property
    def mapped(self) -> int:
        """Bytes of the chunks that exist."""
        return int(self._read_head().mapped)

    @property
    def backed(self) -> int:
        """Bytes of host memory that keep, or kept last, the bytes of allocations."""
        return int(self._read_head().backed)

    def close(self) -> None:
        """Close the file; what is mapped ends with this object."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read_head(self) -> TableHead:
        return TableHead.from_buffer_copy(self._memory)


def _name(layout: str) -> str:
    """Beginning of the name of a file with a table of a layout, whose own name may be longer than a file's."""
    return f"memtopo heap {sha256(layout.encode()).hexdigest()[:16]}/"


def tables_of(pid: int, layout: str) -> Iterator[tuple[str, AllocationTable]]:
    """Yield the label and the table of each heap that a process has of a layout; the caller closes the table.

    `layout` is its name, with the process in one of several, as in `Layout.name`. There are none of a process that has
    ended, or that this one may not inspect.
    """
    beginning, found = f"/memfd:{_name(layout)}", dict[str, Path]()
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it is closed meanwhile
                name = str(each.readlink()).removesuffix(" (deleted)")
                if name.startswith(beginning):
                    found[name.removeprefix(beginning)] = each
    for label, path in found.items():
        with suppress(OSError):
            yield label, AllocationTable(os.open(path, os.O_RDONLY | os.O_CLOEXEC), writable=False)
