"""Mappings of files into this process, at addresses of the system's choice or at given ones."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import NamedTuple

from memtopo.common.errors import on_failure

FIXED = 0x10
"""MAP_FIXED: at the given address, in place of what is mapped there."""

ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Flags of memory of no file."""

_NORESERVE = 0x4000  # MAP_NORESERVE

READ = mmap.PROT_READ
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_FAILED = c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.restype, _mmap.argtypes = c_void_p, [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
_munmap.restype, _munmap.argtypes = c_int, [c_void_p, c_size_t]
_madvise = _libc.madvise
_madvise.restype, _madvise.argtypes = c_int, [c_void_p, c_size_t, c_int]
_mincore = _libc.mincore
_mincore.restype, _mincore.argtypes = c_int, [c_void_p, c_size_t, ctypes.c_char_p]
_fallocate = _libc.fallocate
_fallocate.restype, _fallocate.argtypes = c_int, [c_int, c_int, c_long, c_long]
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def map_memory(address: int | None, size: int, protection: int, flags: int, fd: int = -1, offset: int = 0) -> int:
    """Map `size` bytes, of a file from an offset on or anonymous, and return their address. Raises `OSError`."""
    found = _mmap(address, size, protection, flags, fd, offset)
    if found is None or found == _FAILED:
        raise _error()
    return int(found)


def map_shared(fd: int, offset: int, size: int, *, writable: bool) -> int:
    """Map a part of a file, shared with the other processes that map it. Raises `OSError`."""
    return map_memory(None, size, READ_WRITE if writable else READ, mmap.MAP_SHARED, fd, offset)


def unmap(address: int, size: int) -> None:
    """Unmap what is mapped at `size` bytes from an address on. Raises `OSError`."""
    if _munmap(address, size):
        raise _error()


def advise(address: int, size: int, advice: int) -> None:
    """Advise the system on the use of mapped memory (madvise(2)). Raises `OSError`."""
    if _madvise(address, size, advice):
        raise _error()


def punch_hole(fd: int, offset: int, size: int) -> None:
    """Return a part of a file in memory to the system; its bytes are zero then. Raises `OSError`."""
    if _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, size):
        raise _error()


def is_cached(fd: int, offset: int, size: int) -> bool:
    """Return true if the page cache has all of a part of a file. Raises `OSError`.

    The system tells the owner of the file and users who may write it (mincore(2)); for others the answer is false. A
    read with `RWF_NOWAIT` would tell everybody, but begins to read up to 8 MiB ahead.
    """
    about, start = os.fstat(fd), offset - offset % mmap.PAGESIZE
    length = min(offset + size, about.st_size) - start
    told = about.st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)
    if length <= 0 or not told:
        return False
    address = map_shared(fd, start, length, writable=False)
    try:
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _mincore(address, length, pages):
            raise _error()
    finally:
        unmap(address, length)
    return b"\0" not in pages.raw


class FileSegment(NamedTuple):
    """Bytes `at` an offset of a mapping, which are those at `offset` of a file, with the protection of mmap(2)."""

    at: int
    size: int
    fd: int
    offset: int
    protection: int


class HostMapping:
    """`size` bytes of addresses, of which only the segments are accessible. Raises `OSError` for too many segments."""

    def __init__(self, size: int, segments: Iterable[FileSegment]) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.address = map_memory(None, self.size, 0, ANONYMOUS | _NORESERVE)
        self._mapped: set[tuple[FileSegment, int]] = set()
        with on_failure(self.close):
            self._map_segments(_joined(segments))

    def replace(self, segments: Iterable[FileSegment]) -> None:
        """Map other segments at the same addresses; elsewhere, the memory reads as zeros. Raises `OSError`.

        A segment that is mapped already stays: a thread of the program may be writing to it.
        """
        found, at = list(_joined(sorted(segments))), 0
        for each in found:
            self._blank(at, each.at)
            at = each.at + each.size
        self._blank(at, self.size)
        self._map_segments(found)

    def _map_segments(self, segments: Iterable[FileSegment]) -> None:
        mapped = {(each, os.fstat(each.fd).st_ino) for each in segments}
        before, self._mapped = self._mapped, set()
        for each, _ in mapped - before:
            map_memory(
                self.address + each.at, each.size, each.protection, mmap.MAP_SHARED | FIXED, each.fd, each.offset
            )
        self._mapped = mapped

    def blank(self) -> None:
        """Replace the memory by zeros permanently, so that views that are still in use do not access other memory."""
        self._blank(0, self.size)
        self._mapped.clear()

    def _blank(self, start: int, end: int) -> None:
        if start < end:
            map_memory(self.address + start, end - start, READ_WRITE, ANONYMOUS | _NORESERVE | FIXED)

    def close(self) -> None:
        """Free the addresses."""
        with suppress(OSError):
            unmap(self.address, self.size)


def _joined(segments: Iterable[FileSegment]) -> Iterator[FileSegment]:
    """Join segments that are adjacent here and in their file, since the system limits the number of mappings."""
    last: FileSegment | None = None
    for each in segments:
        if last and each == last._replace(at=last.at + last.size, offset=last.offset + last.size, size=each.size):
            last = last._replace(size=last.size + each.size)
            continue
        if last:
            yield last
        last = each
    if last:
        yield last


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
