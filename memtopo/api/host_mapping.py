"""A simulator's memory in this process's own addresses: as a device sees it, piece by piece, from the files behind it.

A chunk that is mapped twice is there twice, and one that another process has is the same bytes for both.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import NamedTuple

from memtopo.driver.sim import SimDriver
from memtopo.driver.types import Access

_FIXED = 0x10  # MAP_FIXED
_NORESERVE = 0x4000  # MAP_NORESERVE
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
_PROTECTION = {Access.NONE: 0, Access.R: mmap.PROT_READ, Access.RW: mmap.PROT_READ | mmap.PROT_WRITE}
_FAILED = c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.restype, _mmap.argtypes = c_void_p, [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
_munmap.restype, _munmap.argtypes = c_int, [c_void_p, c_size_t]


class Piece(NamedTuple):
    """Bytes `at` an offset of a window, which are those of a file from `offset` on."""

    at: int
    size: int
    fd: int
    offset: int
    access: Access


class Window:
    """`size` bytes of addresses, of which only the pieces can be used. Raises `OSError` where there are too many."""

    def __init__(self, size: int, pieces: Iterable[Piece]) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.address = _map(None, self.size, 0, _ANONYMOUS, -1, 0)
        try:
            for piece in _joined(pieces):
                at, protection = self.address + piece.at, _PROTECTION[piece.access]
                _map(at, piece.size, protection, mmap.MAP_SHARED | _FIXED, piece.fd, piece.offset)
        except BaseException:
            self.close()
            raise

    def blank(self) -> None:
        """Put zeros in the memory's place, for good: whoever still looks here reads those, and writes to nobody."""
        _map(self.address, self.size, _PROTECTION[Access.RW], _ANONYMOUS | _FIXED, -1, 0)

    def close(self) -> None:
        """Give the addresses back."""
        _munmap(self.address, self.size)


def pieces(driver: SimDriver, address: int, mappings: Iterable[tuple[int, int, Access]]) -> Iterator[Piece]:
    """The pieces of a window over what the simulator has from an address on: offset, size and access of each mapping.

    The files stay the simulator's.
    """
    for offset, size, access in mappings:
        if access:
            yield Piece(offset, size, *driver.lend(address + offset, writable=access is Access.RW), access)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same with neighbours made one where they are neighbours in their file too: the system bounds their number."""
    last: Piece | None = None
    for piece in pieces:
        if last and _adjacent(last, piece):
            last = last._replace(size=last.size + piece.size)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last


def _adjacent(one: Piece, other: Piece) -> bool:
    same = (one.fd, one.access) == (other.fd, other.access)
    return same and one.at + one.size == other.at and one.offset + one.size == other.offset


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    found = _mmap(address, size, protection, flags, fd, offset)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"the simulator's memory cannot be mapped: {os.strerror(number)}")
    return int(found)
