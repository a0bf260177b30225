"""Mappings of files into this process, at addresses of the system's choice or at given ones."""

from __future__ import annotations

import ctypes
import mmap
import os
from ctypes import c_int, c_long, c_size_t, c_void_p

FIXED = 0x10
"""MAP_FIXED: at the given address, in place of what is mapped there."""

ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Flags of memory of no file."""

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


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
