"""Mappings of a simulator's memory into this process, for views by the CPU."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from memtopo.common.mapped_files import FIXED, READ, READ_WRITE, map_memory, unmap
from memtopo.driver.types import Access

if TYPE_CHECKING:
    from memtopo.drivers.sim import SimDriver

_NORESERVE = 0x4000  # MAP_NORESERVE
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
_PROTECTION = {Access.NONE: 0, Access.R: READ, Access.RW: READ_WRITE}


class FileSegment(NamedTuple):
    """Bytes `at` an offset of a host mapping, which are those at `offset` of a file."""

    at: int
    size: int
    fd: int
    offset: int
    access: Access


class HostMapping:
    """`size` bytes of addresses, of which only the segments are accessible. Raises `OSError` for too many segments."""

    def __init__(self, size: int, segments: Iterable[FileSegment]) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.address = _map(None, self.size, 0, _ANONYMOUS, -1, 0)
        try:
            self._map_segments(segments)
        except BaseException:
            self.close()
            raise

    def replace(self, segments: Iterable[FileSegment]) -> None:
        """Map other segments at the same addresses; elsewhere, the memory reads as zeros. Raises `OSError`."""
        self.blank()
        self._map_segments(segments)

    def _map_segments(self, segments: Iterable[FileSegment]) -> None:
        for each in _joined(segments):
            at, protection = self.address + each.at, _PROTECTION[each.access]
            _map(at, each.size, protection, mmap.MAP_SHARED | FIXED, each.fd, each.offset)

    def blank(self) -> None:
        """Replace the memory by zeros permanently, so that views that are still in use do not access other memory."""
        _map(self.address, self.size, _PROTECTION[Access.RW], _ANONYMOUS | FIXED, -1, 0)

    def close(self) -> None:
        """Free the addresses."""
        with suppress(OSError):
            unmap(self.address, self.size)


def segments(driver: SimDriver, address: int, mappings: Iterable[tuple[int, int, Access]]) -> Iterator[FileSegment]:
    """Yield the segments of a simulator's memory at an address, for the offset, size and access of each mapping.

    The files remain owned by the simulator.
    """
    for offset, size, access in mappings:
        if access:
            yield FileSegment(offset, size, *driver.lend(address + offset, writable=access is Access.RW), access)


def _joined(segments: Iterable[FileSegment]) -> Iterator[FileSegment]:
    """Join segments that are adjacent here and in their file, since the system limits the number of mappings."""
    last: FileSegment | None = None
    for each in segments:
        if last and _adjacent(last, each):
            last = last._replace(size=last.size + each.size)
            continue
        if last:
            yield last
        last = each
    if last:
        yield last


def _adjacent(one: FileSegment, other: FileSegment) -> bool:
    same = (one.fd, one.access) == (other.fd, other.access)
    return same and one.at + one.size == other.at and one.offset + one.size == other.offset


def _map(address: int | None, size: int, protection: int, flags: int, fd: int, offset: int) -> int:
    try:
        return map_memory(address, size, protection, flags, fd, offset)
    except OSError as error:
        raise OSError(error.errno, f"the simulator's memory cannot be mapped: {error.strerror}") from error
