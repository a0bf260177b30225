"""Reads and writes of large files by several threads, past the page cache where the file system allows it.

Memory, offsets and lengths of direct I/O are multiples of a block (open(2)). A file system that refuses it is read and
written through the page cache, and what is in the page cache is read from there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from memtopo.common.files import closing_fd
from memtopo.common.mapped_files import READ_WRITE, advise, is_cached, map_memory, unmap
from memtopo.common.units import rounded_up

if TYPE_CHECKING:
    from concurrent.futures import Future

BLOCK = 4096
"""Alignment of direct I/O; no file system of Linux is known to need more."""

BUFFER = 16 << 20
"""Bytes of a buffer, and of the largest read or write: as fast as larger ones, and a chunk with a checksum each."""

THREADS = 8
"""Threads of one transfer, each with a buffer: 128 MiB in all."""

_PATIENCE = 1.0
"""Seconds between two calls of `beat`."""

Beat = Callable[[int], None]
"""Called with the number of tasks that are done since the last call, and once a second; it may raise."""


class Buffer(Struct, frozen=True):
    """Memory of a transfer at a page boundary, at an address of this process."""

    address: int
    memory: memoryview

    @classmethod
    def allocate(cls) -> Buffer:
        """Allocate the memory, of huge pages if the system has them: its first use takes a quarter of the time."""
        address = map_memory(None, BUFFER, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Before Linux 5.12, a write after a fork would leave the pages that the driver has locked.
        advise(address, BUFFER, mmap.MADV_DONTFORK)
        with suppress(OSError):  # a system without huge pages
            advise(address, BUFFER, mmap.MADV_HUGEPAGE)
        return cls(address, memoryview((ctypes.c_char * BUFFER).from_address(address)).cast("B"))

    def part(self, size: int) -> memoryview:
        """Return the first bytes as a view."""
        return self.memory[:size]

    def padded(self, size: int) -> memoryview:
        """Return the first bytes with zeros up to the next block."""
        whole = rounded_up(size, BLOCK)
        self.memory[size:whole] = bytes(whole - size)
        return self.part(whole)


class Transfer:
    """Threads with a buffer each until `running` ends, and their tasks; `beat` is called while these are awaited.

    `announce` is called with the number of tasks before they begin.
    """

    def __init__(self, beat: Beat, announce: Callable[[int], None] = lambda _tasks: None) -> None:
        from concurrent import futures  # noqa: PLC0415 imports logging, and few runs transfer files

        self.beat, self.announce = beat, announce
        self.buffers: list[Buffer] = []
        with ExitStack() as stack:
            for _ in range(THREADS):
                buffer = Buffer.allocate()
                stack.callback(unmap, buffer.address, BUFFER)
                self.buffers.append(buffer)
            self.ending = stack.pop_all()
        self._wait = futures.wait
        self._pool = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="memtopo-files")
        self._free: SimpleQueue[Buffer] = SimpleQueue()
        for each in self.buffers:
            self._free.put(each)

    @contextmanager
    def running(self) -> Iterator[Transfer]:
        """End the threads after the code inside, then free the buffers; `ending` has what is to be done between."""
        with self.ending, self._pool:
            yield self

    def run(self, tasks: Iterable[Callable[[Buffer], Any]]) -> list[Any]:
        """Do tasks, each with a buffer, and return their results in order.

        After the first error no further task begins, and it is raised once those under way have ended.
        """
        futures = [self._pool.submit(self._with_buffer, task) for task in tasks]
        self.announce(len(futures))
        try:
            return [self._result(each) for each in futures]
        except BaseException:
            for each in futures:
                each.cancel()
            self._wait(futures)
            raise

    def _with_buffer(self, task: Callable[[Buffer], Any]) -> Any:
        buffer = self._free.get()
        try:
            return task(buffer)
        finally:
            self._free.put(buffer)

    def _result(self, future: Future[Any]) -> Any:
        while not future.done():
            self._wait([future], _PATIENCE)
            self.beat(0)
        result = future.result()
        self.beat(1)
        return result


class DirectFile(Struct):
    """Open file; `direct` is false once the file system has refused direct I/O.

    `buffered` is the same file, opened once more to read what the page cache has.
    """

    fd: int
    direct: bool = False
    buffered: int | None = None

    def set_direct(self) -> None:
        """Read and write by direct I/O from now on, if the file system allows it. Raises `OSError`."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_DIRECT)
            self.direct = True
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise

    def write(self, data: memoryview, offset: int) -> None:
        """Write whole blocks at the offset of a block. Raises `OSError`."""
        while data:
            done = self._attempt(partial(os.pwrite, self.fd, data, offset))
            data, offset = data[done:], offset + done

    def read(self, data: memoryview, offset: int) -> int:
        """Read whole blocks at the offset of a block; return the number of bytes, fewer at the end of the file."""
        read, fd = 0, self.fd
        with suppress(OSError):  # not every file can be mapped: FUSE without a page cache refuses it
            if self.buffered is not None and is_cached(self.buffered, offset, len(data)):
                fd = self.buffered
        while read < len(data):
            done = self._attempt(partial(os.preadv, fd, [data[read:]], offset + read))
            if not done:
                break
            read += done
        return read

    def _attempt(self, call: Callable[[], int]) -> int:
        """Make a call, a second time through the page cache if direct I/O is refused."""
        try:
            return call()
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        self.direct = False
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        return call()


@contextmanager
def opened_to_read(fd: int) -> Iterator[DirectFile]:
    """Open the file of a descriptor once more, for direct I/O. Raises `OSError`."""
    with closing_fd(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)) as other:
        file = DirectFile(other, buffered=fd)
        file.set_direct()
        yield file
