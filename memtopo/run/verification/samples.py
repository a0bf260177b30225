"""Verification by samples: the first and the last bytes of each chunk and buffer, by the driver's copies.

In the first round the process that created a chunk writes, in the second an importer, if one may; every process reads.
The end of a chunk and the start of the next one are copied at once. Memory that no device may write is not checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

from memtopo.driver.kernels import pattern
from memtopo.driver.types import Access, DriverError, Grant, LocationKind
from memtopo.executor import STRIDE
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory
from memtopo.run.verification.access import CopyRefused
from memtopo.run.verification.staging import LEAST, Staging, staging
from memtopo.run.verification.verifier import (
    EventVerification,
    RoundWriters,
    VerificationContext,
    Verifier,
)

WINDOW = 64
"""Bytes verified at each end of a chunk; at the second end up to 7 more if the size is no multiple of 8."""

_WORD = 8

_GPU = LocationKind.GPU
"""Looked up once: a member of an enumeration takes longer to find than most of what is done for a chunk."""


class _View(NamedTuple):
    """Memory at one of its addresses, `offset` in the range or buffer `label`, with the bytes expected at its ends."""

    address: int
    expected: bytes
    memory: MappedMemory
    label: str
    offset: int


class Window(NamedTuple):
    """Bytes at one end of a view, at offset `at` of it."""

    address: int
    expected: bytes
    view: _View
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


class _Copy(NamedTuple):
    """Bytes that one copy takes: a window of each of some views, which adjoin."""

    address: int
    expected: bytes
    views: list[_View]

    def windows(self) -> Iterator[Window]:
        """Windows of the views, in order; only the first can be at the second end of its view."""
        for view in self.views:
            first, last = _ends(view.memory.size)
            at = last if self.address > view.address else 0
            expected = view.expected[first:] if at else view.expected[: first or None]
            yield Window(view.address + at, expected, view, at)


@dataclass(slots=True)
class _Round:
    """Views that one process writes and reads in one round, by the devices that do.

    `inaccessible` windows cannot be copied; `external` ones are of memory that this run did not create.
    """

    writes: dict[tuple[int, ...], list[_View]] = field(default_factory=dict)
    reads: dict[tuple[int, ...], list[_View]] = field(default_factory=dict)
    inaccessible: int = 0
    external: int = 0


class SampleVerifier(Verifier):
    """The ends of each chunk and buffer."""

    action = "verification by bytes"
    aspect = "bytes"
    verbs = "write", "read"

    def __init__(self, context: VerificationContext) -> None:
        self._context = context
        self._events = EventVerification(context)
        self._writers = RoundWriters(
            (process, each.identity)
            for process, memory in context.memory.items()
            for each in memory
            if each.ours and any(writers for _, _, _, writers in _places(each))
        )
        self.rounds = max(len(self._writers), self._events.rounds)
        self._latest: tuple[int, _Round] | None = None
        self._inaccessible = self._external = 0

    def written(self, index: int) -> int:
        """Number of windows that this process writes in a round."""
        return _windows(self._round(index).writes)

    def write(self, index: int) -> None:
        """Write every chunk's pattern once, and wait until it has arrived. Raises `DriverError` or `CopyRefused`."""
        context = self._context
        for device, views in _by_device(self._round(index).writes):
            with self._staging(device, views) as memory:
                for batch in _batches(_joined(views)):
                    with current(context.driver, context.layout.contexts[device]):
                        self._write(device, batch, memory)
                        context.driver.ctx_synchronize()
                    context.advance(sum(len(copy.views) for copy in batch))
        self._events.record(index)

    def read(self, index: int) -> Iterator[Finding]:
        """Read the patterns through every mapping, by every device that has access.

        Raises `DriverError` or `CopyRefused`.
        """
        yield from self._events.wait(index)
        for device, views in _by_device(self._round(index).reads):
            # Lists, not a generator: the code that takes the findings must not run in the device's context.
            with self._staging(device, views) as memory:
                for batch in _batches(_joined(views)):
                    yield from self._read(device, batch, memory)

    def expected(self, index: int) -> int:
        """Number of windows that are read."""
        return _windows(self._round(index).reads)

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Windows without access, and those of external memory."""
        if self._inaccessible:
            yield self._inaccessible, "no device may write them, or read them there, by copies; --check full may"
        if self._external:
            yield self._external, "this run did not create that memory, and does not write it"

    def _staging(self, device: int, views: Sequence[_View]) -> AbstractContextManager[Staging | None]:
        if 2 * len(views) < LEAST:
            return nullcontext()
        return staging(self._context.driver, self._context.layout.contexts[device], STRIDE * 2 * (WINDOW + _WORD))

    def _write(self, device: int, batch: Sequence[_Copy], memory: Staging | None) -> None:
        staged, single = _divided(batch, memory)
        if memory and staged:
            self._context.raise_if_stopped()
            try:
                memory.write([(copy.address, copy.expected) for copy in staged])
            except DriverError as error:
                for copy in staged:  # the copy that is refused is named
                    self._copy(device, copy)
                raise _refused("copy to", staged[0], device, error) from error
        for copy in single:
            self._context.raise_if_stopped()
            self._copy(device, copy)

    def _copy(self, device: int, copy: _Copy) -> None:
        try:
            self._context.driver.memcpy_htod(copy.address, copy.expected)
        except DriverError as error:
            raise _refused("copy to", copy, device, error) from error

    def _read(self, device: int, batch: Sequence[_Copy], memory: Staging | None) -> list[Finding]:
        context, found = self._context, []
        staged, single = _divided(batch, memory)
        with current(context.driver, context.layout.contexts[device]):
            if memory and staged:
                context.raise_if_stopped()
                try:
                    data = memory.read([(copy.address, len(copy.expected)) for copy in staged])
                except DriverError as error:
                    for copy in staged:
                        self._bytes(device, copy)
                    raise _refused("copy from", staged[0], device, error) from error
                found += _compared(device, staged, data)
            for copy in single:
                context.raise_if_stopped()
                found += _compared(device, [copy], self._bytes(device, copy))
        return found

    def _bytes(self, device: int, copy: _Copy) -> bytes:
        try:
            return self._context.driver.memcpy_dtoh(copy.address, len(copy.expected))
        except DriverError as error:
            raise _refused("copy from", copy, device, error) from error

    def _round(self, index: int) -> _Round:
        """Views of a round; the latest is kept, since its write and its read need the same."""
        if self._latest is None or self._latest[0] != index:
            found = _Round()
            for each in self._context.own_memory:
                if each.views:
                    self._add(found, each, index)
            self._latest = index, found
            if index == 0:
                self._inaccessible, self._external = found.inaccessible, found.external
        return self._latest[1]

    def _add(self, found: _Round, memory: MappedMemory, index: int) -> None:
        writer = self._writers.writer(index, memory.identity)
        places = _places(memory) if writer is not None else []
        if index == 0:
            missed = (1 + _has_two_ends(memory.size)) * (len(memory.views) - len(places))
            found.inaccessible += missed if memory.ours else 0
            found.external += 0 if memory.ours else missed
        if not places:
            return
        expected, written = _expected(memory, index), writer != self._context.process
        for label, offset, readers, writers in places:
            view = self._view(memory, expected, label, offset)
            found.reads.setdefault(readers, []).append(view)
            if writers and not written:
                found.writes.setdefault(writers[:1], []).append(view)
                written = True

    def _view(self, memory: MappedMemory, expected: bytes, label: str, offset: int) -> _View:
        return _View(self._context.layout.address(label) + offset, expected, memory, label, offset)


def _refused(verb: str, copy: _Copy, device: int, error: DriverError) -> Exception:
    """Exception for a copy that failed; adjacent windows in one copy are named by the first."""
    window = next(copy.windows())
    return CopyRefused.from_error(f"{verb} {window.subject(device)}", window.view.memory.path, error)


def _has_two_ends(size: int) -> bool:
    """Return whether the windows at the ends of so many bytes are two, and not one that has all of them."""
    return size >= WINDOW + _WORD


def _expected(memory: MappedMemory, index: int) -> bytes:
    """Expected bytes of the windows of some memory, one after another."""
    seed = crc32(f"{memory.identity.owner}/{memory.identity.label}".encode()) + (index << 32)
    first, last = _ends(memory.size)
    return pattern(seed, 0, first) + pattern(seed, last, memory.size - last) if last else pattern(seed, 0, memory.size)


@lru_cache(maxsize=1024)
def _ends(size: int) -> tuple[int, int]:
    """Bytes of the first of two windows, and offset of the second; 0 and 0 if there is one window."""
    last = (size - WINDOW) // _WORD * _WORD if _has_two_ends(size) else 0
    return min(WINDOW, last), last


def _windows(views: Mapping[tuple[int, ...], Sequence[_View]]) -> int:
    """Number of windows of views, each by all of its devices."""
    found = 0
    for devices, some in views.items():
        sizes = Counter(view.memory.size for view in some)
        found += len(devices) * sum((1 + _has_two_ends(size)) * count for size, count in sizes.items())
    return found


def _by_device(views: Mapping[tuple[int, ...], Sequence[_View]]) -> Iterator[tuple[int, list[_View]]]:
    """Views of each device in order of their addresses."""
    for device in dict.fromkeys(chain.from_iterable(views)):
        own = chain.from_iterable(some for devices, some in views.items() if device in devices)
        yield device, sorted(own, key=itemgetter(0))


def _joined(views: Iterable[_View]) -> Iterator[_Copy]:
    """Copies of the windows of views, one for adjacent windows in one range, in memory of one GPU."""
    address, data, joined = 0, b"", list[_View]()
    for view in views:
        start, expected, memory, _, _ = view
        first, last = _ends(memory.size)
        window = expected[:first] if last else expected
        if joined and address + len(data) == start and _adjoin(joined[-1], view):
            data += window
            joined.append(view)
        else:
            if joined:
                yield _Copy(address, data, joined)
            address, data, joined = start, window, [view]
        if last:
            yield _Copy(address, data, joined)
            address, data, joined = start + last, expected[first:], [view]
    if joined:
        yield _Copy(address, data, joined)


def _batches(copies: Iterator[_Copy]) -> Iterator[list[_Copy]]:
    """Batches of copies, after each of which progress is reported."""
    while batch := list(islice(copies, STRIDE)):
        yield batch


def _divided(batch: Sequence[_Copy], memory: Staging | None) -> tuple[Sequence[_Copy], Sequence[_Copy]]:
    """Copies that are made together, which are those of chunks on GPUs (fact 89), and the others."""
    if memory is None:
        return (), batch
    staged: list[_Copy] = []
    single: list[_Copy] = []
    for copy in batch:
        (staged if _is_chunk_on_gpu(copy.views[0].memory) else single).append(copy)
    return staged, single


def _is_chunk_on_gpu(memory: MappedMemory) -> bool:
    return memory.location.kind is _GPU and not memory.addressed


def _compared(device: int, copies: Sequence[_Copy], data: bytes) -> list[Finding]:
    """Findings of windows whose bytes were read, one after another."""
    if data == b"".join([copy.expected for copy in copies]):
        return [Finding.equal("bytes", sum(len(copy.views) for copy in copies))]
    found, at = [], 0
    for window in chain.from_iterable(copy.windows() for copy in copies):
        end = at + len(window.expected)
        found.append(window.finding(device, data[at:end]))
        at = end
    return found


def _adjoin(one: _View, other: _View) -> bool:
    """Return whether one copy can take the end of a view and the start of the next."""
    location = one.memory.location
    return one.label == other.label and location == other.memory.location and location.kind is _GPU


def _places(memory: MappedMemory) -> list[tuple[str, int, tuple[int, ...], tuple[int, ...]]]:
    """Ranges or buffers and offsets at which GPUs may copy from some memory, with these and those that may copy to it.

    What may copy to memory may copy from it.
    """
    if memory.by_kernels:
        return []
    on_host = memory.location.kind is not _GPU
    copying = ((label, offset, *_copying_gpus(grants, on_host)) for label, offset, grants in memory.views)
    return [place for place in copying if place[2]]


@lru_cache(maxsize=1024)
def _copying_gpus(grants: tuple[Grant, ...], on_host: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:  # noqa: FBT001
    """GPUs whose access permits copies from memory, and to it.

    The CPU makes copies to host memory that the host may access, and crashes if it may only read (fact 40).
    """
    gpus = [grant for grant in grants if grant.location.kind is _GPU]
    others = (grant.access for grant in grants if grant.location.kind is not _GPU)
    readers, writers = (
        tuple(grant.location.id for grant in gpus if grant.access & access == access)
        for access in (Access.R, Access.RW)
    )
    return readers, () if on_host and Access.R in others else writers
