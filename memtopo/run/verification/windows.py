"""Windows: the bytes at the ends of chunks and buffers that are verified by samples, and the copies that take them.

Adjacent windows are copied at once: the end of a chunk with the start of the next one in a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import NamedTuple

from memtopo.common.errors import InternalError
from memtopo.common.signals import deferred
from memtopo.driver.batches import copy_each
from memtopo.driver.kernels import pattern, patterns
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HostFlags, LocationKind
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory

WINDOW = 64
"""Bytes verified at each end of a chunk; at the second end up to 7 more if the size is no multiple of 8."""

_WORD = 8

LARGEST_COPY = 2 * (WINDOW + _WORD)
"""Most bytes of a copy: it has windows of two chunks at most."""

_GPU = LocationKind.GPU
"""Looked up once: a member of an enumeration takes longer to find than most of what is done for a chunk."""


@dataclass(frozen=True, slots=True)
class SampledView:
    """Memory at one of its addresses, `offset` in the range or buffer `label`, with the seed of its pattern.

    `staged` is true for chunks on GPUs, which are copied through page-locked memory (fact 89).
    """

    address: int
    seed: int
    memory: MappedMemory
    label: str
    offset: int
    staged: bool


class SampleWindow(NamedTuple):
    """Bytes at one end of a view, at offset `at` of it."""

    address: int
    expected: bytes
    view: SampledView
    at: int

    def subject(self, device: int) -> str:
        """Place of the bytes, and the device that accesses them."""
        view = self.view
        return f"{view.memory.name} in {view.label} at {view.offset + self.at:#x} by gpu{device}"

    def finding(self, device: int, observed: bytes) -> Finding:
        """Compare the bytes that a device reads there."""
        if observed == self.expected:
            return Finding.equal("bytes")
        return Finding("bytes", self.subject(device), self.expected, observed, self.view.memory.path)


_Copy = tuple[int, int, int]
"""Address and bytes of one copy, and the number of windows up to its end, of which each view has two."""


class WindowCopies(NamedTuple):
    """Copies of `number` windows of some `views`: address and bytes of each copy, and the expected bytes of all.

    The windows follow those before `first`, up to the one before each of the `stops`. They are counted as if every
    view had two: the second one of small memory is empty.
    """

    addresses: Sequence[int]
    counts: Sequence[int]
    stops: Sequence[int]
    expected: bytes
    number: int
    views: Sequence[SampledView]
    first: int

    @classmethod
    def of(cls, views: Sequence[SampledView], first: int, copies: Sequence[_Copy]) -> WindowCopies:
        """Return copies of the windows of views from the window `first` on."""
        addresses, counts, stops = zip(*copies, strict=True)
        own = views[first // 2 : (stops[-1] + 1) // 2]
        parts, number = list[bytes](), stops[-1] - first
        for size, some in groupby(own, attrgetter("memory.size")):
            seeds = [view.seed for view in some]
            parts.append(_patterns(seeds, size))
            number -= 0 if _ends(size)[1] else len(seeds)
        before = _ends(own[0].memory.size)[0] if first % 2 else 0
        expected = b"".join(parts)[before : before + sum(counts)]
        return cls(addresses, counts, stops, expected, number, views, first)

    @property
    def staged(self) -> bool:
        """True if all of the memory is copied through page-locked memory."""
        return all(map(attrgetter("staged"), self.views[self.first // 2 : (self.stops[-1] + 1) // 2]))

    def single(self) -> Iterator[WindowCopies]:
        """Each copy by itself."""
        firsts = (self.first, *self.stops)
        for first, *copy in zip(firsts, self.addresses, self.counts, self.stops, strict=False):
            yield WindowCopies.of(self.views, first, [(copy[0], copy[1], copy[2])])

    def windows(self) -> Iterator[SampleWindow]:
        """Windows of the copies, in order."""
        done = 0
        for index in range(self.first, self.stops[-1]):
            view = self.views[index // 2]
            first, last = _ends(view.memory.size)
            at, end = (last, view.memory.size if last else 0) if index % 2 else (0, first)
            if at < end:
                yield SampleWindow(view.address + at, self.expected[done : done + end - at], view, at)
                done += end - at


def batches(views: Sequence[SampledView], most: int) -> Iterator[WindowCopies]:
    """Copies of the windows of views, which are in the order of their addresses, at most so many at once."""
    copies, first = _joined(views), 0
    while some := list(islice(copies, most)):
        yield WindowCopies.of(views, first, some)
        first = some[-1][2]


def has_two_ends(size: int) -> bool:
    """Return whether the windows at the ends of so many bytes are two, and not one that has all of them."""
    return size >= WINDOW + _WORD


def _joined(views: Sequence[SampledView]) -> Iterator[_Copy]:
    """Copies of the windows of views, one for adjacent windows in one range, in memory of one GPU."""
    address = end = size = first = last = 0
    latest: SampledView | None = None
    for index, view in enumerate(views):
        start = view.address
        if view.memory.size != size:
            size = view.memory.size
            first, last = _ends(size)
        if latest and end == start and _adjoin(latest, view):
            end += first
        else:
            if latest:
                yield address, end - address, 2 * index
            address, end = start, start + first
        if last:
            yield address, end - address, 2 * index + 1
            address, end = start + last, start + size
        latest = view
    if latest:
        yield address, end - address, 2 * len(views)


def _adjoin(one: SampledView, other: SampledView) -> bool:
    """Return whether one copy can take the end of a view and the start of the next."""
    location = one.memory.location
    return one.label == other.label and location == other.memory.location and location.kind is _GPU


@lru_cache(maxsize=1024)
def _ends(size: int) -> tuple[int, int]:
    """Bytes of the first of two windows, and offset of the second; all bytes and 0 if there is one window."""
    last = (size - WINDOW) // _WORD * _WORD if has_two_ends(size) else 0
    return min(WINDOW, last or size), last


def _patterns(seeds: Sequence[int], size: int) -> bytes:
    """Expected bytes of the windows of memory of one size with some seeds, one after another."""
    first, last = _ends(size)
    if first == size - last == WINDOW:
        return patterns(seeds, (0, last), WINDOW)
    ends = [(0, first), (last, size - last)] if last else [(0, size)]
    return b"".join([pattern(seed, at, count) for seed in seeds for at, count in ends])


LEAST = 256
"""Spans for which the memory is worth its allocation."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Page-locked memory of `size` bytes, with a stream of a GPU's context, which is current during the copies."""

    driver: Driver
    address: int
    size: int
    stream: int

    def write(self, addresses: Sequence[int], counts: Sequence[int], data: bytes) -> None:
        """Copy `data` to addresses, so many bytes to each, and wait.

        Raises `DriverError`; copies before the refused one may be complete.
        """
        self._require(len(data))
        self.driver.host_write(self.address, data)
        self._copy(list(zip(addresses, accumulate(counts, initial=self.address), counts, strict=False)))

    def read(self, addresses: Sequence[int], counts: Sequence[int]) -> bytes:
        """Copy so many bytes from each address, and wait; return them one after another. Raises `DriverError`."""
        size = sum(counts)
        self._require(size)
        self._copy(list(zip(accumulate(counts, initial=self.address), addresses, counts, strict=False)))
        return self.driver.host_read(self.address, size)

    def _require(self, size: int) -> None:
        if size > self.size:
            raise InternalError(f"{size:,} bytes for {self.size:,} of staging memory")

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
        yield Staging(driver, address, size, stream) if stream else None
    finally:
        with deferred(), current(driver, context):
            if stream:
                driver.stream_destroy(stream)
            if address:
                driver.mem_free_host(address)
