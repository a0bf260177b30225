"""Verification by samples: the first and the last bytes of each chunk and buffer, by the driver's copies.

In the first round the process that created a chunk writes, in the second an importer, if one may; every process reads.
Memory that no device may write is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache
from itertools import chain, islice
from operator import itemgetter

from msgspec import Struct

from memtopo.driver.types import Access, DriverError, Grant, LocationKind
from memtopo.executor import STRIDE
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory
from memtopo.run.verification.isolation import CopyFailed
from memtopo.run.verification.verifier import EventVerification, RoundWriters, VerificationContext, Verifier
from memtopo.run.verification.windows import LEAST, WINDOW, SampledView, SampleWindow, Staging, ends, staging, windows

_Place = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""Range or buffer and offset of memory, with the GPUs that may copy from it there, and to it."""

_WRITERS = itemgetter(3)

_GPU = LocationKind.GPU
"""Looked up once: a member of an enumeration takes longer to find than most of what is done for a chunk."""


class _Round(Struct):
    """Views that one process writes and reads in one round, by the devices that do."""

    writes: dict[tuple[int, ...], list[SampledView]] = {}
    reads: dict[tuple[int, ...], list[SampledView]] = {}


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
            for each, places in _placed(memory)
            if each.ours and any(map(_WRITERS, places))
        )
        self.rounds = max(len(self._writers), self._events.rounds)
        self._latest: tuple[int, _Round] | None = None

    def written(self, index: int) -> int:
        """Number of windows that this process writes in a round."""
        return _count(self._round(index).writes)

    def write(self, index: int) -> None:
        """Write every chunk's pattern once, and wait until that is complete. Raises `DriverError`."""
        context = self._context
        for device, memory, batch in self._batches(self._round(index).writes):
            with current(context.driver, context.layout.contexts[device]):
                self._write(device, batch, memory)
                context.driver.ctx_synchronize()
            context.advance(len(batch))
        self._events.record(index)

    def read(self, index: int) -> Iterator[Finding]:
        """Read the patterns through every mapping, by every device that has access.

        Raises `DriverError`.
        """
        yield from self._events.wait(index)
        for device, memory, batch in self._batches(self._round(index).reads):
            # A list, not a generator: the code that takes the findings must not run in the device's context.
            yield from self._read(device, batch, memory)

    def expected(self, index: int) -> int:
        """Number of windows that are read."""
        return _count(self._round(index).reads)

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Windows without access, and those of external memory."""
        missed = {True: 0, False: 0}  # by whether this run created the memory
        for memory, places in _placed(self._context.own_memory):
            verified = 0 if self._writers.writer(0, memory.identity) is None else len(places)
            missed[memory.ours] += (len(memory.views) - verified) * len(ends(memory.size))
        if missed[True]:
            yield missed[True], "no device can write them, or read them there, by copies; --check full may be able to"
        if missed[False]:
            yield missed[False], "this run did not create that memory, and does not write it"

    def _batches(
        self, views: Mapping[tuple[int, ...], Sequence[SampledView]]
    ) -> Iterator[tuple[int, Staging | None, list[SampleWindow]]]:
        """Windows of each device, some at a time, with memory to copy them together if there are many."""
        driver, contexts = self._context.driver, self._context.layout.contexts
        for device in dict.fromkeys(chain.from_iterable(views)):
            own = list(chain.from_iterable(some for devices, some in views.items() if device in devices))
            many = 2 * len(own) >= LEAST
            with staging(driver, contexts[device], STRIDE * WINDOW) if many else nullcontext() as memory:
                each = windows(own)
                while batch := list(islice(each, STRIDE)):
                    yield device, memory, batch

    def _write(self, device: int, batch: Sequence[SampleWindow], memory: Staging | None) -> None:
        staged, single = _divided(batch, memory)
        if memory and staged:
            self._context.raise_if_stopped()
            try:
                memory.write(staged)
            except DriverError as error:
                for window in staged:  # the one that is refused is named
                    self._copy(device, window)
                raise _failed("copy to", staged[0], device, error) from error
        for window in single:
            self._context.raise_if_stopped()
            self._copy(device, window)

    def _copy(self, device: int, window: SampleWindow) -> None:
        try:
            self._context.driver.memcpy_htod(window.address, window.expected)
        except DriverError as error:
            raise _failed("copy to", window, device, error) from error

    def _read(self, device: int, batch: Sequence[SampleWindow], memory: Staging | None) -> list[Finding]:
        context, found = self._context, list[Finding]()
        staged, single = _divided(batch, memory)
        with current(context.driver, context.layout.contexts[device]):
            if memory and staged:
                context.raise_if_stopped()
                try:
                    data = memory.read(staged)
                except DriverError as error:
                    for window in staged:
                        self._bytes(device, window)
                    raise _failed("copy from", staged[0], device, error) from error
                found += _compared(device, staged, data)
            for window in single:
                context.raise_if_stopped()
                found.append(window.finding(device, self._bytes(device, window)))
        return found

    def _bytes(self, device: int, window: SampleWindow) -> bytes:
        try:
            return self._context.driver.memcpy_dtoh(window.address, len(window.expected))
        except DriverError as error:
            raise _failed("copy from", window, device, error) from error

    def _round(self, index: int) -> _Round:
        """Views of a round; the latest is kept, since its write and its read need the same."""
        if self._latest is None or self._latest[0] != index:
            found = _Round()
            address_of = cache(self._context.layout.address)
            for memory, places in _placed(self._context.own_memory):
                if memory.views:
                    self._add(found, memory, places, index, address_of)
            self._latest = index, found
        return self._latest[1]

    def _add(
        self, found: _Round, memory: MappedMemory, places: list[_Place], index: int, address_of: Callable[[str], int]
    ) -> None:
        writer = self._writers.writer(index, memory.identity)
        if writer is None or not places:
            return
        identity = memory.identity
        seed = f"{identity.owner}/{identity.label}/{index}".encode()
        written = writer != self._context.process
        for label, offset, readers, writers in places:
            view = SampledView(address_of(label) + offset, seed, memory, label, offset)
            found.reads.setdefault(readers, []).append(view)
            if writers and not written:
                found.writes.setdefault(writers[:1], []).append(view)
                written = True


def _failed(verb: str, window: SampleWindow, device: int, error: DriverError) -> CopyFailed:
    return CopyFailed(f"{verb} {window.subject(device)}", window.view.memory.path, error)


def _count(views: Mapping[tuple[int, ...], Sequence[SampledView]]) -> int:
    """Number of windows of views, each by all of its devices."""
    return sum(len(devices) * len(ends(view.memory.size)) for devices, some in views.items() for view in some)


def _divided(
    batch: Sequence[SampleWindow], memory: Staging | None
) -> tuple[Sequence[SampleWindow], Sequence[SampleWindow]]:
    """Windows that are copied together, and each of the others by itself."""
    if memory is None:
        return (), batch
    staged = [each for each in batch if each.view.staged]
    return staged, () if len(staged) == len(batch) else [each for each in batch if not each.view.staged]


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


def _placed(memory: Iterable[MappedMemory]) -> Iterator[tuple[MappedMemory, list[_Place]]]:
    """Memory with the places at which GPUs may copy from it. What may copy to memory may copy from it."""
    for each in memory:
        places = list[_Place]()
        on_host = each.location.kind is not _GPU
        for label, offset, grants in () if each.by_kernels else each.views:
            readers, writers = _copying_gpus(grants, on_host)
            if readers:
                places.append((label, offset, readers, writers))
        yield each, places


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
