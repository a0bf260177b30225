"""Physical memory: bytes in sparse memory files, so that untouched memory takes no memory of the system."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct

from memtopo.common.errors import Failed, on_failure
from memtopo.common.files import closing_fd
from memtopo.common.mapped_files import punch_hole
from memtopo.common.units import rounded_up
from memtopo.drivers.sim.calls import RefusedCall
from memtopo.drivers.sim.shared_files import Files, Tag, nonce

_LENGTH = 1 << 62
"""Bytes of the arena, more than a process takes; what is not touched takes no memory."""

PAGE = mmap.PAGESIZE
PIECE = 1 << 20
"""Bytes that are copied and filled at a time."""

_ZEROS = bytes(PIECE)


class Physical(Struct):
    """Bytes of one chunk or allocation: a part of the arena or, with a tag, a shared file of its own.

    It can move from the arena to a file, so descriptor and offset must not be kept elsewhere.
    """

    fd: int
    offset: int
    size: int
    touched: bool = False
    tag: Tag | None = None

    @property
    def is_beside(self) -> bool:
        """True if its file has other memory as well."""
        return self.tag is not None and self.tag.kind == "dmabuf"

    def read(self, at: int, count: int) -> bytes:
        """Read bytes from `at` on; untouched bytes are zero."""
        parts = []
        while count:
            if not (part := os.pread(self.fd, count, self.offset + at)):
                raise _gone()
            parts.append(part)
            at, count = at + len(part), count - len(part)
        return b"".join(parts)

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes from `at` on; pieces of zeros take no memory."""
        self.touched, rest = True, memoryview(data)
        for start in range(0, len(rest), PIECE):
            piece = rest[start : start + PIECE]
            if len(piece) == PIECE and bytes(piece) == _ZEROS:
                punch_hole(self.fd, self.offset + at + start, PIECE)
            else:
                self._store(at + start, piece)

    def _store(self, at: int, rest: memoryview) -> None:
        while rest:
            if not (written := os.pwrite(self.fd, rest, self.offset + at)):
                raise _gone()
            at, rest = at + written, rest[written:]

    def copy(self, at: int, source: Physical, from_at: int, count: int) -> None:
        """Copy bytes of other memory; what is touched in neither stays untouched."""
        theirs = [(start - from_at, end - from_at) for start, end in source.extents(from_at, count)]
        ours = [(start - at, end - at) for start, end in self.extents(at, count)]
        for start, end in [*theirs, *ours]:
            for piece in range(start, end, PIECE):
                self.write(at + piece, source.read(from_at + piece, min(PIECE, end - piece)))

    def extents(self, at: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of every touched part of `count` bytes from `at` on."""
        low = self.offset + at
        for start, end in _touched(self.fd, low, low + count):
            yield start - self.offset, end - self.offset


def _gone() -> OSError:
    """Error of memory of a process that has ended, of which nothing is read or written any more."""
    return OSError(errno.EFAULT, os.strerror(errno.EFAULT))


class SimProcessMemory(Physical):
    """Memory of a process, or of this one, at the address `offset`.

    A page that is gone is an `OSError`, and no signal.
    """

    pid: int | None = None

    def read(self, at: int, count: int) -> bytes:
        with self._memory() as fd:
            return Physical(fd, self.offset, self.size).read(at, count)

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        with self._memory() as fd:
            Physical(fd, self.offset, self.size)._store(at, memoryview(data))  # noqa: SLF001 it has no holes

    def extents(self, at: int, count: int) -> Iterator[tuple[int, int]]:
        yield at, at + count

    def present(self, start: int, end: int) -> bool:
        """Return whether each page between two addresses can be read: none is behind the end of its file."""
        with self._memory() as fd:
            try:
                return all(os.pread(fd, 1, page) for page in {start, end - PAGE})
            except OSError:
                return False

    def _memory(self) -> AbstractContextManager[int]:
        """Descriptor of the memory of the process, by address; open for one access, and counted in no snapshot."""
        return closing_fd(os.open(f"/proc/{self.pid or 'self'}/mem", os.O_RDWR | os.O_CLOEXEC))


class Arena:
    """One sparse memfd for all memory of a process that was never shared; offsets are never reused."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._fd = os.memfd_create("memtopo-arena", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            os.ftruncate(self._fd, _LENGTH)
        except OSError as error:
            message = f"the simulator cannot have a large file in memory: {(error.strerror or '').lower()}"
            raise Failed(message, hint="run it without a limit on the size of files: 'ulimit -f unlimited'") from error
        self._used = 0

    def take(self, size: int) -> Physical:
        """Allocate `size` bytes, which take no memory until they are touched: the last step of a call."""
        self.check(size)
        offset, self._used = self._used, self._used + rounded_up(size, PAGE)
        return Physical(self._fd, offset, size)

    def check(self, size: int) -> None:
        """Refuse more bytes than can be taken."""
        if size > _LENGTH - self._used:
            raise RefusedCall("CUDA_ERROR_OUT_OF_MEMORY", "the simulator has no room for so many bytes")

    def share(self, physical: Physical, kind: str, granule: int, location: str, flags: tuple[str, ...] = ()) -> Tag:
        """Move memory with its bytes into a file of its own, unless it is in one; returns the file's tag."""
        if physical.tag and not physical.is_beside:
            return physical.tag
        tag = Tag(kind, physical.size, granule, location, nonce(), flags)
        fd = self._files.create(tag)
        with on_failure(self._files.close, fd):
            if physical.touched or physical.tag:
                _copy(physical, fd)
        self.give(physical)
        physical.fd, physical.offset, physical.tag = fd, 0, tag
        return tag

    def gather(self, each: Sequence[Physical], tag: Tag) -> None:
        """Move memories with their bytes into one file, one after another."""
        fd, at = self._files.create(tag), 0
        try:
            for physical in each:
                if physical.touched or physical.tag:
                    _copy(physical, fd, at)
                self.give(physical)
                physical.fd, physical.offset, physical.tag = self._files.duplicate(fd), at, tag
                at += physical.size
        finally:
            self._files.close(fd)

    def adopt(self, fd: int, tag: Tag) -> Physical:
        """Return the memory behind an open shared file."""
        return Physical(fd, 0, tag.size, tag=tag)

    def give(self, physical: Physical) -> None:
        """Return memory to the system: all touched pages, or the file, which other processes may still use."""
        if physical.tag:
            self._files.close(physical.fd)
        elif physical.touched:
            punch_hole(self._fd, physical.offset, rounded_up(physical.size, PAGE))

    def close(self) -> None:
        """Close the memfd, which frees all its memory; a second call does nothing."""
        self._close()


def _copy(physical: Physical, fd: int, to: int = 0) -> None:
    """Copy touched pages to an offset of another file; a hole stays a hole."""
    for start, end in _touched(physical.fd, physical.offset, physical.offset + physical.size):
        at = os.lseek(fd, to + start - physical.offset, os.SEEK_SET) + physical.offset - to
        while at < end:
            at += os.sendfile(fd, physical.fd, at, end - at)


def _touched(fd: int, at: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of every touched part between two offsets of a file."""
    while at < limit:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the file's end
                return
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        if start < limit:
            yield start, min(at, limit)
