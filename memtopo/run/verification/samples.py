"""Verification by samples: the first and the last bytes of each chunk and buffer, by the driver's copies.

In the first round the process that created a chunk writes, in the second an importer, if one may; every process reads.
Memory that no device may write is not checked. Windows, the bytes at the ends, are copied by page-locked memory, some
hundred at a time (fact 89).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from itertools import chain, islice
from typing import NamedTuple

from msgspec import Struct

from memtopo.common.signals import deferred
from memtopo.common.text import numbered
from memtopo.common.units import by_key
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, HostFlags, Location, LocationKind
from memtopo.driver.wrappers import copy_each
from memtopo.executor import STRIDE
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import Identity, MemoryGroup, Place, ViewRun, in_order
from memtopo.run.verification.isolation import CopyFailed
from memtopo.run.verification.verifier import EventVerification, RoundWriters, VerificationContext, Verifier

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


class _Part(Struct, frozen=True, dict=True):
    """Views of one group, of which some devices write or read those that are `used`, in a round."""

    memory: MemoryGroup
    runs: Sequence[ViewRun]
    used: Callable[[Place], bool]

    @cached_property
    def number(self) -> int:
        """Number of windows, by one device."""
        return sum(map(self.used, in_order(self.runs))) * len(ends(self.memory.group.declared_size))

    @property
    def staged(self) -> bool:
        """True for chunks on GPUs, which are copied through page-locked memory if they are many (fact 89)."""
        return not (self.memory.group.addressed or self.memory.on_host(self.runs[0]))

    def views(self, index: int, address_of: Callable[[str], int]) -> Iterator[SampledView]:
        """Views with the seeds of a round."""
        memory, location_of = self.memory, self.memory.group.location_of
        for number, offset, run in filter(self.used, in_order(self.runs)):
            identity, address = memory.identity(number), address_of(run.label) + offset
            seed = f"{identity.owner}/{identity.label}/{index}".encode()
            yield SampledView(address, seed, memory, number, run.label, offset, location_of(number))


_Copies = tuple[Callable[[Sequence[SampleWindow]], bytes | None] | None, Callable[[SampleWindow], bytes | None]]
"""Copy of windows together, if there is memory for that, and of one."""

_Parts = dict[tuple[int, ...], list[_Part]]
"""Parts by the devices that write or read them."""


class _Writers:
    """Process that writes each object in each round: its creator in the first, an importer in the second."""

    def __init__(self, memory: Mapping[str, Sequence[MemoryGroup]]) -> None:
        self._created: dict[tuple[str, str], bytearray] = {}
        """Flag for each object of a group, which is set if its creator may write it."""
        imported: list[tuple[str, Identity]] = []
        for process, each in ((process, each) for process, own in memory.items() for each in own if each.ours):
            written = chain.from_iterable(run.indices for run in each.runs if _copying(each, run)[1])
            if each.group.origin:
                imported += ((process, each.identity(index)) for index in written)
                continue
            flags = self._created[process, each.group.name] = bytearray(each.group.count)
            for index in written:
                flags[index] = 1
        self._imported = RoundWriters(iter(imported))

    def __len__(self) -> int:
        return len(self._imported)

    def writer(self, index: int, identity: Identity) -> str | None:
        """Process that writes an object in a round, or None."""
        name, number = numbered(identity.label)
        flags = self._created.get((identity.owner, name)) if index == 0 else None
        return identity.owner if flags and flags[number or 0] else self._imported.writer(index, identity)


class SampleVerifier(Verifier):
    """The ends of each chunk and buffer."""

    action = "verification by bytes"
    aspect = "bytes"
    verbs = "write", "read"

    def __init__(self, context: VerificationContext) -> None:
        self._context = context
        self._events = EventVerification(context)
        self._own = context.memory[context.process]
        self._writers = _Writers(context.memory)
        self.rounds = max(len(self._writers), self._events.rounds)
        self._known: dict[int, tuple[_Parts, _Parts]] = {}  # by round; a cache would be a reference cycle

    def written(self, index: int) -> int:
        """Number of windows that this process writes in a round."""
        return _count(self._parts(index)[0])

    def write(self, index: int) -> None:
        """Write every chunk's pattern once, and wait until that is complete. Raises `DriverError`."""
        context = self._context
        for device, memory, batch in self._batches(index, self._parts(index)[0]):
            with current(context.driver, context.layout.contexts[device]):

                def single(window: SampleWindow) -> None:
                    self._context.driver.memcpy_htod(window.address, window.expected)

                self._copied("copy to", device, batch, (memory.write if memory else None, single))
                context.driver.ctx_synchronize()
            context.advance(len(batch))
        self._events.record(index)

    def read(self, index: int) -> Iterator[Finding]:
        """Read the patterns through every mapping, by every device that has access.

        Raises `DriverError`.
        """
        yield from self._events.wait(index)
        for device, memory, batch in self._batches(index, self._parts(index)[1]):
            # A list, not a generator: the code that takes the findings must not run in the device's context.
            yield from self._read(device, batch, memory)

    def expected(self, index: int) -> int:
        """Number of windows that are read."""
        return _count(self._parts(index)[1])

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Windows without access, and those of external memory."""
        read = sum(part.number for parts in self._parts(0)[1].values() for part in parts)
        missed = {True: -read, False: 0}  # by whether this run created the memory
        for memory in self._own:
            missed[memory.ours] += sum(len(run.indices) for run in memory.runs) * len(ends(memory.group.declared_size))
        if missed[True]:
            yield missed[True], "no device can write them, or read them there, by copies; --check full may be able to"
        if missed[False]:
            yield missed[False], "this run did not create that memory, and does not write it"

    def _batches(self, index: int, parts: _Parts) -> Iterator[tuple[int, Staging | None, list[SampleWindow]]]:
        """Windows of each device, some at a time, with memory to copy them together if there are many."""
        driver, layout = self._context.driver, self._context.layout
        for device in dict.fromkeys(chain.from_iterable(parts)):
            own = [part for devices, some in parts.items() if device in devices for part in some]
            many = sum(part.number for part in own if part.staged) >= LEAST
            for together, some in by_key((many and part.staged, part) for part in own).items():
                with staging(driver, layout.contexts[device], STRIDE * WINDOW) if together else nullcontext() as memory:
                    address_of = cache(layout.address)
                    each = windows(view for part in some for view in part.views(index, address_of))
                    while batch := list(islice(each, STRIDE)):
                        yield device, memory, batch

    def _read(self, device: int, batch: Sequence[SampleWindow], memory: Staging | None) -> list[Finding]:
        driver = self._context.driver

        def single(window: SampleWindow) -> bytes:
            return driver.memcpy_dtoh(window.address, len(window.expected))

        with current(driver, self._context.layout.contexts[device]):
            data = self._copied("copy from", device, batch, (memory.read if memory else None, single))
        return list(_compared(device, batch, data))

    def _copied(self, verb: str, device: int, batch: Sequence[SampleWindow], copies: _Copies) -> bytes:
        """Copy windows together if that is possible, else one by one; return what was read. Raises `CopyFailed`."""
        (together, single), refused = copies, None
        if together:
            self._context.raise_if_stopped()
            try:
                return together(batch) or b""
            except DriverError as error:
                refused = error  # the window that is refused alone is named
        found: list[bytes] = []
        for window in batch:
            self._context.raise_if_stopped()
            try:
                found.append(single(window) or b"")
            except DriverError as error:
                raise _failed(verb, window, device, error) from error
        if refused:
            raise _failed(verb, batch[0], device, refused) from refused
        return b"".join(found)

    def _parts(self, index: int) -> tuple[_Parts, _Parts]:
        """Return what this process writes and reads in a round."""
        if index not in self._known:
            writes, reads = self._known[index] = _Parts(), _Parts()
            for memory in self._own:
                if memory.ours:
                    self._add(index, memory, writes, reads)
        return self._known[index]

    def _add(self, index: int, memory: MemoryGroup, writes: _Parts, reads: _Parts) -> None:
        numbers, process = range(memory.group.count), self._context.process
        writers = [self._writers.writer(index, memory.identity(number)) for number in numbers]
        first: list[ViewRun | None] = [None] * len(numbers)  # at which this process writes an object
        writing = [run.once for run in memory.runs if _copying(memory, run)[1]]
        for run in reversed(writing):
            for number in run.indices:
                first[number] = run if writers[number] == process else None
        by_readers = by_key(((_copying(memory, run)[0], memory.on_host(run)), run) for run in memory.runs)
        for (devices, _), some in by_readers.items():
            if devices:
                reads.setdefault(devices, []).append(_Part(memory, some, lambda place: writers[place[0]] is not None))
        by_writer = by_key(((_copying(memory, run)[1][:1], memory.on_host(run)), run) for run in writing)
        for (devices, _), some in by_writer.items():
            writes.setdefault(devices, []).append(_Part(memory, some, lambda place: first[place[0]] is place[2]))


def _failed(verb: str, window: SampleWindow, device: int, error: DriverError) -> CopyFailed:
    return CopyFailed(f"{verb} {window.subject(device)}", window.view.memory.group.path, error)


def _count(parts: _Parts) -> int:
    """Number of windows, each by all of its devices."""
    return sum(len(devices) * part.number for devices, some in parts.items() for part in some)


def _compared(device: int, windows: Sequence[SampleWindow], data: bytes) -> Iterator[Finding]:
    """Findings of windows whose bytes were read, one after another."""
    if data == b"".join([each.expected for each in windows]):
        yield Finding.equal("bytes", len(windows))
        return
    at = 0
    for window in windows:
        end = at + len(window.expected)
        yield window.finding(device, data[at:end])
        at = end


def _copying(memory: MemoryGroup, run: ViewRun) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """GPUs that may copy from memory at some views, and to it. GPUs that may copy to it may copy from it."""
    return ((), ()) if memory.by_kernels else _copying_gpus(run.grants, memory.on_host(run))


@lru_cache(maxsize=1024)
def _copying_gpus(grants: tuple[Grant, ...], on_host: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:  # noqa: FBT001
    """GPUs whose access permits copies from memory, and to it.

    The CPU makes copies to host memory that the host may access, and crashes if it may only read (fact 40).
    """
    gpus = [grant for grant in grants if grant.location.kind is LocationKind.GPU]
    others = (grant.access for grant in grants if grant.location.kind is not LocationKind.GPU)
    readers, writers = (
        tuple(grant.location.id for grant in gpus if grant.access & access == access)
        for access in (Access.R, Access.RW)
    )
    return readers, () if on_host and Access.R in others else writers
