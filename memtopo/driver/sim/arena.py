"""The bytes behind simulated memory: sparse files in memory, so that what nobody touched costs nothing."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass

STEP = 1 << 40


@dataclass(slots=True)
class Physical:
    """The bytes of one chunk: a part of a memfd. Nobody keeps its numbers, so that it can move into another file."""

    fd: int
    offset: int
    size: int
    touched: bool = False

    def read(self, at: int, count: int) -> bytes:
        """Bytes from `at` on; never touched ones read as zero."""
        parts = []
        while count:
            part = os.pread(self.fd, count, self.offset + at)
            parts.append(part)
            at, count = at + len(part), count - len(part)
        return b"".join(parts)

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Put bytes from `at` on."""
        self.touched = True
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.fd, rest, self.offset + at)
            at, rest = at + written, rest[written:]


class Arena:
    """One sparse memfd for all chunks of a process; offsets are never used twice."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("memtopo-arena", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._fd)
        self._length = 0
        self._used = 0

    def take(self, size: int) -> Physical:
        """Room for `size` bytes, at no cost until they are touched."""
        offset, self._used = self._used, self._used + size
        if self._used > self._length:
            self._length = -(-self._used // STEP) * STEP
            os.ftruncate(self._fd, self._length)
        return Physical(self._fd, offset, size)

    def give(self, physical: Physical) -> None:
        """Give touched memory back to the system."""
        if physical.touched:
            with mmap.mmap(physical.fd, physical.size, offset=physical.offset) as view:
                view.madvise(mmap.MADV_REMOVE)

    def resident(self) -> int:
        """How many bytes of the system's memory the arena holds."""
        return os.fstat(self._fd).st_blocks * 512 if self._close.alive else 0

    def close(self) -> None:
        """Close the memfd, and with it give all memory back; a second time does nothing."""
        self._close()
