"""Verification by samples: the first and the last bytes of each chunk and buffer, by the driver's copies.

In the first round the process that created a chunk writes, in the second an importer, if one may; every process reads.
The end of a chunk and the start of the next one are copied at once. Memory that no device may write is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
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
    MappedView,
    RoundWriters,
    VerificationContext,
    Verifier,
)

WINDOW = 64
"""Bytes verified at each end of a chunk; at the second end up to 7 more if the size is no multiple of 8."""

_EQUAL = Finding.equal("bytes")


class Window(NamedTuple):
    """Bytes at one end of a chunk, at offset `at` of the range or buffer `label`."""

    address: int
    expected: bytes
    chunk: MappedMemory
    label: str
    at: int

    def subject(self, device: int) -> str:
        """Place of the bytes, and the device that accesses them."""
        return f"{self.chunk.name} in {self.label} at {self.at:#x} by gpu{device}"

    def finding(self, device: int, observed: bytes) -> Finding:
        """Compare the bytes that a device reads there."""
        if observed == self.expected:
            return _EQUAL
        return Finding("bytes", self.subject(device), self.expected, observed, self.chunk.path)


_Group = Sequence[Window]
"""Adjacent windows that one copy takes."""


@dataclass(slots=True)
class _Round:
    """Windows that one process writes and reads in one round, by device.

    `inaccessible` windows cannot be copied; `external` ones are of memory that this run did not create.
    """

    writes: dict[int, list[Window]] = field(default_factory=dict)
    reads: dict[int, list[Window]] = field(default_factory=dict)
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
            if each.ours and next(_views(process, each, Access.RW), None)
        )
        self.rounds = max(len(self._writers), self._events.rounds)
        self._latest: tuple[int, _Round] | None = None
        self._inaccessible = self._external = 0

    def written(self, index: int) -> int:
        """Number of windows that this process writes in a round."""
        return sum(map(len, self._round(index).writes.values()))

    def write(self, index: int) -> None:
        """Write every chunk's pattern once, and wait until it has arrived. Raises `DriverError` or `CopyRefused`."""
        context = self._context
        for device, windows in self._round(index).writes.items():
            with self._staging(device, windows) as memory:
                for batch in _batches(_joined(windows)):
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
        for device, windows in self._round(index).reads.items():
            # Lists, not a generator: the code that takes the findings must not run in the device's context.
            with self._staging(device, windows) as memory:
                for batch in _batches(_joined(windows)):
                    yield from self._read(device, batch, memory)

    def expected(self, index: int) -> int:
        """Number of windows that are read."""
        return sum(map(len, self._round(index).reads.values()))

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Windows without access, and those of external memory."""
        if self._inaccessible:
            yield self._inaccessible, "no device may write them, or read them there, by copies; --check full may"
        if self._external:
            yield self._external, "this run did not create that memory, and does not write it"

    def _staging(self, device: int, windows: Sequence[Window]) -> AbstractContextManager[Staging | None]:
        if len(windows) < LEAST:
            return nullcontext()
        size = STRIDE * max(2 * len(each.expected) for each in windows)
        return staging(self._context.driver, self._context.layout.contexts[device], size)

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
                    every = memory.read([(group[0].address, _length(group)) for group in staged])
                except DriverError as error:
                    for group in staged:
                        self._bytes(device, group)
                    raise _refused("copy from", staged[0][0], device, error) from error
                found += [
                    each for group, data in zip(staged, every, strict=True) for each in _compared(device, group, data)
                ]
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
        """Windows of a round; the latest is kept, since its write and its read need the same."""
        if self._latest is None or self._latest[0] != index:
            found = _Round()
            for each in self._context.own_memory:
                if each.views:
                    self._add(found, each, index)
            self._latest = index, found
            if index == 0:
                self._inaccessible, self._external = found.inaccessible, found.external
        return self._latest[1]

    def _add(self, found: _Round, chunk: MappedMemory, index: int) -> None:
        process, patterns = self._context.process, _patterns(chunk, index)
        writer = self._writers.writer(index, chunk.identity)
        readers = list(_views(process, chunk, Access.R)) if writer is not None else []
        if index == 0:
            missed = max(1, len(patterns)) * (len(chunk.views) - len({view.mapping for view in readers}))
            found.inaccessible += missed if chunk.ours else 0
            found.external += 0 if chunk.ours else missed
        if writer == process and (view := next(_views(process, chunk, Access.RW), None)):
            found.writes.setdefault(view.device, []).extend(self._windows(chunk, view, patterns))
        for view in readers:
            found.reads.setdefault(view.device, []).extend(self._windows(chunk, view, patterns))

    def _windows(self, chunk: MappedMemory, view: MappedView, patterns: list[tuple[int, bytes]]) -> Iterator[Window]:
        start = self._context.layout.address(view.label)
        for offset, expected in patterns:
            at = view.offset + offset
            yield Window(start + at, expected, chunk, view.label, at)


def _refused(verb: str, window: Window, device: int, error: DriverError) -> Exception:
    """Exception for a copy that failed; adjacent windows in one copy are named by the first."""
    return CopyRefused.from_error(f"{verb} {window.subject(device)}", window.chunk.path, error)


def _patterns(chunk: MappedMemory, index: int) -> list[tuple[int, bytes]]:
    """Expected bytes at the ends of a chunk, by offset."""
    seed = crc32(f"{chunk.identity.owner}/{chunk.identity.label}".encode()) + (index << 32)
    last = max(0, chunk.size - WINDOW) // 8 * 8
    first = [(0, pattern(seed, 0, min(WINDOW, last)))] if last else []
    return [*first, (last, pattern(seed, last, chunk.size - last))]


def _joined(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Groups of adjacent windows that one copy can take: in one range, in memory of one GPU."""
    group: list[Window] = []
    for window in sorted(windows, key=lambda window: window.address):
        if group and not _adjoin(group[-1], window):
            yield group
            group = []
        group.append(window)
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
    staged = [group for group in batch if _is_chunk_on_gpu(group[0].chunk)]
    return staged, [group for group in batch if not _is_chunk_on_gpu(group[0].chunk)]


def _is_chunk_on_gpu(memory: MappedMemory) -> bool:
    return memory.location.kind is LocationKind.GPU and not memory.addressed


def _data(group: _Group) -> bytes:
    return b"".join([window.expected for window in group])


def _length(group: _Group) -> int:
    return group[-1].address + len(group[-1].expected) - group[0].address


def _compared(device: int, group: _Group, data: bytes) -> Iterator[Finding]:
    """Findings of the windows of a group, whose bytes one copy has read."""
    for window in group:
        at = window.address - group[0].address
        yield window.finding(device, data[at : at + len(window.expected)])


def _adjoin(one: Window, other: Window) -> bool:
    return (
        one.address + len(one.expected) == other.address
        and one.label == other.label
        and one.chunk.location == other.chunk.location
        and one.chunk.location.kind is LocationKind.GPU
    )


def _views(process: str, chunk: MappedMemory, access: Access) -> Iterator[MappedView]:
    """Views of a chunk by the GPUs that may copy from or to it."""
    on_host = chunk.location.kind is not LocationKind.GPU
    for label, offset, grants in () if chunk.by_kernels else chunk.views:
        for device in _copying_gpus(grants, access, on_host=on_host):
            yield MappedView(process, device, label, offset)


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
