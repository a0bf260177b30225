"""Common parts of the verifiers: their context, their rounds, mapped views of memory, and events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar, NamedTuple

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import Access, LocationKind
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import Identity, MappedMemory, MemoryGroup, RecordedEvent
from memtopo.plans.report import Rate


class VerificationContext(Struct, frozen=True):
    """Memory and events of every process by its label, and the driver and layout of this process.

    `raise_if_stopped` raises if a stop of the run was requested; `advance` reports progress: bytes for a verifier with
    a volume, else objects written. `seed` is the same in all processes. Nothing is timed on a simulator.
    """

    process: str
    memory: Mapping[str, Sequence[MemoryGroup]]
    events: Mapping[str, Sequence[RecordedEvent]]
    driver: KernelDriver
    layout: Layout
    raise_if_stopped: Callable[[], None] = lambda: None
    advance: Callable[[int], None] = lambda _: None
    seed: int = 0
    simulated: bool = True

    @property
    def own_memory(self) -> Sequence[MappedMemory]:
        """Memory of this process, object by object."""
        return list(chain.from_iterable(self.memory[self.process]))

    @property
    def on_host(self) -> bool:
        """True if memory of the host has an address in this process."""
        return any(each.on_host(run) for each in self.memory[self.process] for run in each.runs)


class Unsignalled(MemtopoError):
    """A semaphore, declared at `path`, was not signalled in time."""

    def __init__(self, message: str, path: Path, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class Verifier:
    """One method of verification, in rounds: in each round all processes write before any process reads."""

    action: ClassVar[str]
    """Name of the verification in a failure."""

    aspect: ClassVar[str]
    """Aspect of its findings."""

    verbs: ClassVar[tuple[str, str]]
    """Names of the phases that write and read; the first is empty if nothing is written."""

    rounds: int = 1
    """Number of rounds, the same in all processes."""

    @property
    def volume(self) -> int:
        """Bytes that this process writes and reads in all rounds; 0 if they are too few to report progress."""
        return 0

    def written(self, index: int) -> int:
        """Number of objects that this process writes in a round."""
        del index
        return 0

    def write(self, index: int) -> None:
        """Write this process's part of a round, and wait until the writes are complete."""

    def read(self, index: int) -> Iterator[Finding]:
        """Read what all processes wrote in a round, as far as this process has access."""
        raise NotImplementedError

    def expected(self, index: int) -> int:
        """Number of objects that are read in a round."""
        raise NotImplementedError

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Number of objects that no round covers, with the reason."""
        return iter(())

    def rates(self) -> Iterator[Rate]:
        """Measured rates."""
        return iter(())


class MappedView(NamedTuple):
    """One mapping of memory as one GPU of one process accesses it: `offset` in the range or buffer `label`."""

    process: str
    device: int
    label: str
    offset: int

    @property
    def mapping(self) -> tuple[str, int]:
        """Range or buffer, and the offset in it."""
        return self.label, self.offset


def gpu_views(process: str, memory: MappedMemory, access: Access) -> Iterator[MappedView]:
    """Views of memory by every GPU of a process that has this access."""
    for label, offset, grants in memory.views:
        for grant in grants:
            if grant.location.kind is LocationKind.GPU and grant.access & access == access:
                yield MappedView(process, grant.location.id, label, offset)


class RoundWriters:
    """Process that writes each object in each round: its creator in the first, an importer in the second."""

    def __init__(self, candidates: Iterator[tuple[str, Identity]]) -> None:
        created: dict[Identity, str] = {}
        imported: dict[Identity, str] = {}
        for process, identity in candidates:
            (created if identity.owner == process else imported).setdefault(identity, process)
        self._rounds = [created, imported] if imported else [created]

    def __len__(self) -> int:
        return len(self._rounds)

    def writer(self, index: int, identity: Identity) -> str | None:
        """Process that writes an object in a round, or None."""
        return self._rounds[index].get(identity) if index < len(self._rounds) else None


class EventVerification:
    """Events, each recorded by one process in a round and waited for by all others.

    `rounds` is the number of rounds, the same in all processes.
    """

    def __init__(self, context: VerificationContext) -> None:
        events = context.events.items()
        self.context = context
        self._writers = RoundWriters((process, event.identity) for process, each in events for event in each)
        self.rounds = len(self._writers)

    def record(self, index: int) -> None:
        """Record the events that this process records in a round. Raises `DriverError`."""
        driver, layout = self.context.driver, self.context.layout
        for event in self._of(index, own=True):
            with current(driver, layout.contexts[event.device]):
                driver.event_record(self._handle(event))

    def wait(self, index: int) -> Iterator[Finding]:
        """Wait on each GPU for the events that other processes recorded in a round. Raises `DriverError`."""
        driver, layout = self.context.driver, self.context.layout
        for event in self._of(index, own=False):
            self.context.raise_if_stopped()
            with current(driver, layout.contexts[event.device]):
                driver.stream_wait_event(0, self._handle(event))
                driver.ctx_synchronize()
            observed = "complete" if driver.event_query(self._handle(event)) else "not ready"
            subject = f"{event.event}, recorded by {event.identity.owner or 'this process'}"
            yield Finding("event", subject, "complete", observed, event.path)

    def _handle(self, event: RecordedEvent) -> int:
        from memtopo.kinds.ipc.steps import EVENT_HANDLES

        return self.context.layout.of(EVENT_HANDLES)[event.event]

    def _of(self, index: int, *, own: bool) -> Iterator[RecordedEvent]:
        for event in self.context.events[self.context.process]:
            recorder = self._writers.writer(index, event.identity)
            if recorder is not None and (recorder == self.context.process) is own:
                yield event
