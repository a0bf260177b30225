"""Windows: the bytes at the ends of chunks and buffers that are verified by samples.

They are copied by page-locked memory, some hundred at a time (fact 89).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

from memtopo.common.signals import deferred
from memtopo.driver.batches import copy_each
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HostFlags, Location
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MemoryGroup

WINDOW = 64
"""Bytes verified at each end of a chunk."""


class SampledView(Struct, frozen=True):
    """Object at one of its addresses, `offset` in the range or buffer `label`, with the seed of its bytes."""

    address: int
    seed: bytes
    memory: MemoryGroup
    index: int
    label: str
    offset: int
    location: Location


class SampleWindow(NamedTuple):
    """Bytes at one end of a view, at offset `at` of it."""

    address: int
    expected: bytes
    view: SampledView
    at: int

    def subject(self, device: int) -> str:
        """Place of the bytes, and the device that accesses them."""
        view = self.view
        name = view.memory.group.label(view.index)
        return f"{name} in {view.label} at {view.offset + self.at:#x} by gpu{device}"

    def finding(self, device: int, observed: bytes) -> Finding:
        """Compare the bytes that a device reads there."""
        if observed == self.expected:
            return Finding.equal("bytes")
        return Finding("bytes", self.subject(device), self.expected, observed, self.view.memory.group.path)


def windows(views: Iterable[SampledView]) -> Iterator[SampleWindow]:
    """Windows of views, in order. Their bytes differ between windows, chunks and rounds."""
    for view in views:
        for at, count in ends(view.memory.group.declared_size):
            expected = blake2b(b"%b/%d" % (view.seed, at), digest_size=count).digest()
            yield SampleWindow(view.address + at, expected, view, at)


@lru_cache(maxsize=1024)
def ends(size: int) -> tuple[tuple[int, int], ...]:
    """Offset and bytes of the windows of memory of a size: one at each end, or one that has all of it."""
    if size <= WINDOW:
        return ((0, size),)
    last = size - WINDOW
    return (0, min(WINDOW, last)), (last, WINDOW)


LEAST = 256
"""Windows for which the memory is worth its allocation."""


class Staging(Struct, frozen=True):
    """Page-locked memory, with a stream of a GPU's context, which is current during the copies."""

    driver: Driver
    address: int
    stream: int

    def write(self, windows: Sequence[SampleWindow]) -> None:
        """Copy the expected bytes of windows to them, and wait.

        Raises `DriverError`; copies before the refused one may be complete.
        """
        self.driver.host_write(self.address, b"".join([each.expected for each in windows]))
        self._copy([*self._copies(windows)])

    def read(self, windows: Sequence[SampleWindow]) -> bytes:
        """Copy the bytes of windows from them, and wait; return them one after another. Raises `DriverError`."""
        self._copy([(at, address, count) for address, at, count in self._copies(windows)])
        return self.driver.host_read(self.address, sum(len(each.expected) for each in windows))

    def _copies(self, windows: Sequence[SampleWindow]) -> Iterator[tuple[int, int, int]]:
        """Address, place in the page-locked memory and bytes of copies: one of windows that are adjacent in a range.

        So the end of a chunk and the start of the next one are copied together, which takes half of the time.
        """
        first, size, at, latest = windows[0].address, 0, self.address, windows[0].view
        for address, expected, view, _ in windows:
            if address != first + size or (view.label, view.location) != (latest.label, latest.location):
                yield first, at, size
                first, at, size = address, at + size, 0
            size, latest = size + len(expected), view
        yield first, at, size

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        error = copy_each(self.driver, copies, self.stream)
        self.driver.ctx_synchronize()
        if error:
            raise error


@contextmanager
def staging(driver: Driver, context: int, size: int) -> Iterator[Staging | None]:
    """Staging memory of `size` bytes in a GPU's context; None if there is no such memory, as where all is locked."""
    address = stream = 0
    try:
        with deferred(), current(driver, context), suppress(DriverError):
            address = driver.mem_host_alloc(size, HostFlags.PORTABLE)
            stream = driver.stream_create()
        yield Staging(driver, address, stream) if stream else None
    finally:
        with deferred():  # and without the context (facts 56 and 74), which may no longer be made current
            if stream:
                driver.stream_destroy(stream)
            if address:
                driver.mem_free_host(address)
