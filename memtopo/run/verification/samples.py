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


_Group = Sequence[Window]
"""Adjacent windows that one copy takes."""


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
            if each.ours and _places(each, Access.RW)
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
                    context.advance(sum(map(len, batch)))
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

    def _write(self, device: int, batch: Sequence[_Group], memory: Staging | None) -> None:
        staged, single = _divided(batch, memory)
        if memory and staged:
            self._context.raise_if_stopped()
            try:
                memory.write([(group[0].address, _data(group)) for group in staged])
            except DriverError as error:
                for group in staged:  # the copy that is refused is named
                    self._copy(device, group)
                raise _refused("copy to", staged[0][0], device, error) from error
        for group in single:
            self._context.raise_if_stopped()
            self._copy(device, group)

    def _copy(self, device: int, group: _Group) -> None:
        try:
            self._context.driver.memcpy_htod(group[0].address, _data(group))
        except DriverError as error:
            raise _refused("copy to", group[0], device, error) from error

    def _read(self, device: int, batch: Sequence[_Group], memory: Staging | None) -> list[Finding]:
        context, found = self._context, []
        staged, single = _divided(batch, memory)
        with current(context.driver, context.layout.contexts[device]):
            if memory and staged:
                context.raise_if_stopped()
                try:
                    data = memory.read([(group[0].address, _length(group)) for group in staged])
                except DriverError as error:
                    for group in staged:
                        self._bytes(device, group)
                    raise _refused("copy from", staged[0][0], device, error) from error
                found += _compared(device, list(chain.from_iterable(staged)), data)
            for group in single:
                context.raise_if_stopped()
                found += _compared(device, group, self._bytes(device, group))
        return found

    def _bytes(self, device: int, group: _Group) -> bytes:
        try:
            return self._context.driver.memcpy_dtoh(group[0].address, _length(group))
        except DriverError as error:
            raise _refused("copy from", group[0], device, error) from error

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
        readable = _places(memory, Access.R) if writer is not None else []
        if index == 0:
            missed = (1 + _has_two_ends(memory.size)) * (len(memory.views) - len(readable))
            found.inaccessible += missed if memory.ours else 0
            found.external += 0 if memory.ours else missed
        if writer is None:
            return
        expected = _expected(memory, index)
        views = [(self._view(memory, expected, label, offset), devices) for label, offset, devices in readable]
        for view, devices in views:
            found.reads.setdefault(devices, []).append(view)
        if writer == self._context.process and (writable := _places(memory, Access.RW)):
            label, offset, devices = writable[0]
            same = (view for view, _ in views if (view.label, view.offset) == (label, offset))
            view = next(same, None) or self._view(memory, expected, label, offset)
            found.writes.setdefault(devices[:1], []).append(view)

    def _view(self, memory: MappedMemory, expected: bytes, label: str, offset: int) -> _View:
        return _View(self._context.layout.address(label) + offset, expected, memory, label, offset)


def _refused(verb: str, window: Window, device: int, error: DriverError) -> Exception:
    """Exception for a copy that failed; adjacent windows in one copy are named by the first."""
    return CopyRefused.from_error(f"{verb} {window.subject(device)}", window.view.memory.path, error)


def _has_two_ends(size: int) -> bool:
    """Return whether the windows at the ends of so many bytes are two, and not one that has all of them."""
    return size >= WINDOW + _WORD


def _expected(memory: MappedMemory, index: int) -> bytes:
    """Expected bytes of the windows of some memory, one after another."""
    seed = crc32(f"{memory.identity.owner}/{memory.identity.label}".encode()) + (index << 32)
    first, last = _ends(memory.size)
    return pattern(seed, 0, first) + pattern(seed, last, memory.size - last) if last else pattern(seed, 0, memory.size)


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


def _joined(views: Iterable[_View]) -> Iterator[list[Window]]:
    """Groups of adjacent windows that one copy can take: in one range, in memory of one GPU."""
    group: list[Window] = []
    for view in views:
        address, expected, memory, _, _ = view
        first, last = _ends(memory.size)
        window = Window(address, expected[:first] if last else expected, view, 0)
        if group and not _adjoin(group[-1], window):
            yield group
            group = []
        group.append(window)
        if last:
            yield group
            group = [Window(address + last, expected[first:], view, last)]
    if group:
        yield group


def _batches(groups: Iterator[list[Window]]) -> Iterator[list[list[Window]]]:
    """Batches of groups, after each of which progress is reported."""
    while batch := list(islice(groups, STRIDE)):
        yield batch


def _divided(batch: Sequence[_Group], memory: Staging | None) -> tuple[Sequence[_Group], Sequence[_Group]]:
    """Groups that are copied together, which are those of chunks on GPUs (fact 89), and the others."""
    if memory is None:
        return (), batch
    staged: list[_Group] = []
    single: list[_Group] = []
    for group in batch:
        (staged if _is_chunk_on_gpu(group[0].view.memory) else single).append(group)
    return staged, single


def _is_chunk_on_gpu(memory: MappedMemory) -> bool:
    return memory.location.kind is LocationKind.GPU and not memory.addressed


def _data(group: _Group) -> bytes:
    return b"".join([window.expected for window in group])


def _length(group: _Group) -> int:
    return group[-1].address + len(group[-1].expected) - group[0].address


def _compared(device: int, windows: Sequence[Window], data: bytes) -> list[Finding]:
    """Findings of windows whose bytes were read, one after another."""
    if data == _data(windows):
        return [Finding.equal("bytes", len(windows))]
    found, at = [], 0
    for window in windows:
        end = at + len(window.expected)
        found.append(window.finding(device, data[at:end]))
        at = end
    return found


def _adjoin(one: Window, other: Window) -> bool:
    if one.address + len(one.expected) != other.address or one.view.label != other.view.label:
        return False
    location = one.view.memory.location
    return location == other.view.memory.location and location.kind is LocationKind.GPU


def _places(memory: MappedMemory, access: Access) -> list[tuple[str, int, tuple[int, ...]]]:
    """Ranges or buffers and offsets at which GPUs may copy from or to some memory, with these GPUs."""
    if memory.by_kernels:
        return []
    on_host = memory.location.kind is not LocationKind.GPU
    return [
        (label, offset, devices)
        for label, offset, grants in memory.views
        if (devices := _copying_gpus(grants, access, on_host=on_host))
    ]


@lru_cache(maxsize=1024)
def _copying_gpus(grants: tuple[Grant, ...], access: Access, *, on_host: bool) -> tuple[int, ...]:
    """GPUs whose access permits copies.

    The CPU makes copies to host memory that the host may access, and crashes if it may only read (fact 40).
    """
    gpus = [grant for grant in grants if grant.location.kind is LocationKind.GPU]
    others = (grant.access for grant in grants if grant.location.kind is not LocationKind.GPU)
    if on_host and access is Access.RW and Access.R in others:
        return ()
    return tuple(grant.location.id for grant in gpus if grant.access & access == access)
