"""The bytes behind simulated memory: sparse files in memory, so that what nobody touched costs nothing."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.sim.shared_files import Files, Tag

STEP = 1 << 40
PAGE = mmap.PAGESIZE


@dataclass(slots=True)
class Physical:
    """The bytes of one chunk or allocation: a part of the arena or, with a tag, a file of its own that is shared.

    Nobody keeps its numbers, so that it can move from the one to the other.
    """

    fd: int
    offset: int
    size: int
    touched: bool = False
    tag: Tag | None = None

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
    """One sparse memfd for all memory of a process that was never shared; offsets are never used twice."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._fd = os.memfd_create("memtopo-arena", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._fd)
        self._length = 0
        self._used = 0

    def take(self, size: int) -> Physical:
        """Room for `size` bytes, at no cost until they are touched."""
        offset, self._used = self._used, self._used + -(-size // PAGE) * PAGE
        if self._used > self._length:
            self._length = -(-self._used // STEP) * STEP
            os.ftruncate(self._fd, self._length)
        return Physical(self._fd, offset, size)

    def share(self, physical: Physical, tag: Tag) -> None:
        """Move memory with its bytes into a file of its own; whoever uses it goes on using it."""
        fd = self._files.create(tag)
        try:
            if physical.touched:
                _copy(physical, fd)
        except BaseException:
            self._files.close(fd)
            raise
        self.give(physical)
        physical.fd, physical.offset, physical.tag = fd, 0, tag

    def adopt(self, fd: int, tag: Tag) -> Physical:
        """The memory behind a shared file, which is open here."""
        return Physical(fd, 0, tag.size, tag=tag)

    def give(self, physical: Physical) -> None:
        """Give memory back to the system: all that was touched, or the file, which others may go on using."""
        if physical.tag:
            self._files.close(physical.fd)
        elif physical.touched:
            with mmap.mmap(physical.fd, physical.size, offset=physical.offset) as view:
                view.madvise(mmap.MADV_REMOVE)

    def resident(self) -> int:
        """How many bytes of the system's memory the arena holds."""
        return os.fstat(self._fd).st_blocks * 512 if self._close.alive else 0

    def close(self) -> None:
        """Close the memfd, and with it give all memory back; a second time does nothing."""
        self._close()


def _copy(physical: Physical, fd: int) -> None:
    """Copy what was touched to the start of another file; a hole stays a hole."""
    for start, end in _touched(physical):
        at = os.lseek(fd, start - physical.offset, os.SEEK_SET) + physical.offset
        while at < end:
            at += os.sendfile(fd, physical.fd, at, end - at)


def _touched(physical: Physical) -> Iterator[tuple[int, int]]:
    """Start and end of every part that holds bytes, as offsets in the arena."""
    at, limit = physical.offset, physical.offset + physical.size
    while at < limit:
        try:
            start = os.lseek(physical.fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the file's end
                return
            raise
        at = os.lseek(physical.fd, start, os.SEEK_HOLE)
        if start < limit:
            yield start, min(at, limit)
