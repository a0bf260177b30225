"""Semaphores that another API created, such as Vulkan, which order its work and CUDA's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import SemaphoreHandleType
from memtopo.geometry.model import Geometry
from memtopo.kinds.external import (
    FROM,
    DuplicateDescriptor,
    ExternalObject,
    ProducedGroup,
    from_process,
    producer_gpu,
    producer_origin,
    unsupported,
)
from memtopo.kinds.kind import Kind, Scope, Use
from memtopo.kinds.layout import Layout, Wait, current
from memtopo.kinds.resolution import Resolution
from memtopo.kinds.step import HandleRequest, Phase, Step, StepDescription
from memtopo.language.entries import Entry
from memtopo.language.fields import DeviceName, Point, ProducerText, SemaphoreKind
from memtopo.machine import Machine

GRACE = 5.0
"""Seconds that a wait has to end by itself during teardown."""

LAST = 1.5
"""Seconds after the end of a producer in which what it signalled last may arrive, and in which others who wait for it
give up: a signal from here must not be taken for the producer's."""

_PAUSE = 0.002

_Export = tuple[tuple[str, ...], str]

_Waits = dict[_Export, list[tuple[int, "ImportedSemaphore"]]]


def _schema(via: str, each: dict[str, Any]) -> dict[str, Any]:
    """The schema of what a semaphore of one kind waits for and signals."""
    return {
        "if": {"properties": {"via": {"const": via}}},
        "then": {"properties": dict.fromkeys(("wait", "signal"), each)},
    }


_TIMELINE = _schema("timeline_fd", {"type": "integer"})

_BINARY = _schema("opaque_fd", {"const": True})


class Semaphore(Entry):
    """A semaphore that another API made. Waits and signals happen in the check."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_TIMELINE, _BINARY]})

    source: ProducerText = Field(alias="from", description=FROM)
    via: SemaphoreKind = Field(description="timeline_fd, or opaque_fd of a binary one.")
    device: DeviceName = Field(description="The GPU whose stream waits and signals.")
    wait: Point | None = Field(default=None, description="The value that is waited for; of a binary one, true.")
    signal: Point | None = Field(default=None, description="The value that is signalled then; of a binary one, true.")

    @field_validator("wait", "signal")
    @classmethod
    def _of_its_kind(cls, value: int | Literal[True] | None, info: ValidationInfo) -> int | Literal[True] | None:
        via, key = info.data.get("via"), info.field_name
        if via == "timeline_fd" and value is True:
            told = "a timeline semaphore has values, and 'true' is none"
            raise InvalidValue("MT103", told, help=f"write '{key}: 1', or 'via: opaque_fd' of a binary semaphore")
        if via == "opaque_fd" and value is not None and value is not True:
            told = f"a binary semaphore has no values, found {value}"
            raise InvalidValue("MT103", told, help=f"write '{key}: true', or 'via: timeline_fd' of a timeline")
        return value


@dataclass(frozen=True, slots=True)
class ImportedSemaphore(ProducedGroup):
    """One semaphore that another API created. `wait` and `signal` are the values of a check, 0 for a binary semaphore.

    None means that the check does not wait, or does not signal.
    """

    noun = "semaphore"
    offered_as = "semaphore"
    trial = "external-semaphore"

    timeline: bool
    wait: int | None = None
    signal: int | None = None
    count: int = 1
    counted: bool = False
    size: int = 0

    @property
    def stream(self) -> int | None:
        """Ordinal of the GPU whose own stream it needs."""
        return self.place.id

    @property
    def must_be_advertised(self) -> bool:
        """True for a timeline semaphore."""
        return self.timeline

    def details(self) -> Iterator[str]:
        """Kind, and the values of the check."""
        yield "timeline" if self.timeline else "binary"
        if self.wait is not None:
            yield f"waits for {self.wait}" if self.timeline else "waits"
        if self.signal is not None:
            yield f"signals {self.signal}" if self.timeline else "signals"

    def properties(self) -> dict[str, str]:
        """Kind of the semaphore."""
        return {"kind": f"a {'timeline' if self.timeline else 'binary'} semaphore"}


class Semaphores(Kind):
    """The section `semaphores`."""

    section = "semaphores"
    description = "External semaphores, by name, which order the work of another API and CUDA's."
    article = "a semaphore"
    entry = model = Semaphore
    group = ImportedSemaphore
    drawn = "semaphore"
    unusable: ClassVar[Mapping[Use, tuple[str, str]]] = {
        "map": ("a semaphore is no memory", "leave it out"),
        "access": ("a semaphore is no memory", "leave it out"),
        "export": (
            "the driver imports semaphores and exports none",
            "have its producer hand it to the other process as well",
        ),
    }

    def resolve_entry(self, scope: Scope, entry: Semaphore, path: Path) -> Resolution[ImportedSemaphore | None]:
        name, timeline = str(path[-1]), entry.via == "timeline_fd"
        what = f"semaphore {name!r}"
        place = yield from producer_gpu(scope, what, entry.device, path)
        wrong = [
            *unsupported(what, path, entry.via, "timeline_fd", "opaque_fd"),
            *from_process(what, path, entry.source, scope.processes),
            *(_backwards(what, path, entry.wait, entry.signal) if timeline else ()),
        ]
        yield from wrong
        if wrong or place is None:
            return None
        origin = producer_origin(name, entry.source, "timeline_fd" if timeline else "opaque_fd")
        return ImportedSemaphore(name, path, place, origin, timeline, _value(entry.wait), _value(entry.signal))

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        del machine
        for group in geometry.of(ImportedSemaphore).values():
            yield DuplicateDescriptor(group.path, group.name, HandleRequest.of(group, 0))
            kind = SemaphoreHandleType[group.origin.via.upper()]
            yield ImportSemaphore(group.path, group.name, group.place.id, kind)

    def last_steps(self, geometry: Geometry, steps: Sequence[Step]) -> Iterator[Step]:
        """One for each GPU that waits for a semaphore."""
        waiting = [group for group in geometry.of(ImportedSemaphore).values() if group.wait is not None]
        for device, path in {group.place.id: group.path for group in reversed(waiting)}.items():
            yield AwaitStream(path, device, tuple(name for step in steps for name in step.blocked_by_wait(device)))


@dataclass(frozen=True, slots=True)
class ImportSemaphore(Step):
    """Hands the descriptor to the driver, whose it is from then on. There is no query for it, and none for its kind."""

    label: str
    device: int
    kind: SemaphoreHandleType

    phase = Phase.IMPORT
    verb = "import semaphore"
    call = "cuImportExternalSemaphore"
    undo_call = "cuDestroyExternalSemaphore"

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = layout.descriptors[self.label].fd
        with current(driver, layout.contexts[self.device]):
            layout.semaphores[self.label] = driver.import_external_semaphore(fd, self.kind)
            del layout.descriptors[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Forgotten first, so that nobody tries a second time, which would end the process (fact 57)."""
        if self.label in layout.semaphores:
            driver.destroy_external_semaphore(layout.semaphores.pop(self.label))

    def describe(self) -> StepDescription:
        kind = "timeline" if self.kind is SemaphoreHandleType.TIMELINE_FD else "binary"
        return StepDescription(self.label, f"gpu{self.device}", note=kind)

    def leak_name(self) -> str:
        return f"semaphore {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        del device
        return (self.leak_name(),)


@dataclass(frozen=True, slots=True)
class AwaitStream(Step):
    """Asks a stream whether it is done. It never waits in the driver, which would do so for ever (fact 58).

    A wait whose other end is gone is signalled here, since nobody else will; whoever begins to wait after that takes it
    for the producer's. Where it still stands then, `stays` names
    what cannot be undone because of it; the end of the process ends it all.
    """

    device: int
    stays: tuple[str, ...]

    phase = Phase.SETTLE
    verb = "await stream"
    call = "cuStreamQuery"
    undo_call = "cuStreamQuery"

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.stream_query(layout.streams[self.device])

    def undo(self, driver: Driver, layout: Layout) -> None:
        wait = layout.waiting.get(self.device)
        if wait is None:
            return
        ended = self._done(driver, layout, min(GRACE, layout.timeout), wait)
        if not ended and layout.handle_source.gone(wait.holder) and not self._done(driver, layout, LAST):
            self._signal(driver, layout, wait)
            self._done(driver, layout, GRACE)
        if self.device in layout.waiting:
            value = f" to reach {wait.value:,}" if wait.value else ""
            told = f"it waits for semaphore {wait.semaphore!r} of {wait.holder}{value}, which nobody signalled"
            raise MemtopoError(f"{told}; the end of this process ends the wait")

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")

    def leak_name(self) -> str:
        return f"wait of gpu{self.device}"

    def blocks(self) -> tuple[str, ...]:
        return self.stays

    def _done(self, driver: Driver, layout: Layout, seconds: float, wait: Wait | None = None) -> bool:
        """Whether the stream comes to an end in time; of a wait, as long as its other end is there."""
        until = time.monotonic() + seconds
        while not driver.stream_query(layout.streams[self.device]):
            if time.monotonic() > until or (wait and layout.handle_source.gone(wait.holder)):
                return False
            time.sleep(_PAUSE)
        del layout.waiting[self.device]
        return True

    def _signal(self, driver: Driver, layout: Layout, wait: Wait) -> None:
        """From another stream, which does not wait for this one."""
        with current(driver, layout.contexts[self.device]):
            stream = driver.stream_create()
        try:
            driver.signal_external_semaphore(layout.semaphores[wait.semaphore], wait.value, stream)
        finally:
            driver.stream_destroy(stream)


def unsignalled(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """MT705: a wait ends only when its value is signalled (facts 56, 58), by its producer or elsewhere in the spec.

    An entry signals after its own wait, so a value is reached only by entries whose waits have ended.
    """
    del machine
    sections = ("external", "semaphores", "processes")
    if any(member.has_unresolved(each) for member in (geometry, *geometry.members.values()) for each in sections):
        return
    for waits in _waits(geometry).values():
        reached = -1
        for value, group in sorted(waits, key=_value_of):
            if value > reached:
                yield _endless(group)
            elif group.signal is not None:
                reached = max(reached, group.signal)


def _value(point: int | None) -> int | None:
    return 0 if point is True else point


def _backwards(what: str, path: Path, wait: int | None, signal: int | None) -> Iterator[Diagnostic]:
    """MT704, where a timeline would not go forward: it begins at 0, and a smaller value sets it back."""
    if wait == 0:
        told = f"{what} waits for 0, which is where a timeline begins"
        yield Diagnostic("MT704", told, (*path, "wait"), help="wait for 1 or more, or leave 'wait' out")
    if signal is not None and signal <= (least := wait or 0):
        told = f"{what} signals {signal}, and its timeline is at {least} or more by then"
        note = "the driver would set it back, and whoever waits for more would wait again (fact 56)"
        label = (Label(f"waits for {wait}", (*path, "wait")),) if wait else ()
        help = f"signal {least + 1} or more"
        yield Diagnostic("MT704", told, (*path, "signal"), labels=label, notes=(note,), help=help)


def _waits(geometry: Geometry) -> _Waits:
    """Entries of each semaphore, in all processes, with the value that must be signalled for them; -1 for none."""
    found: _Waits = {}
    for member in geometry.members.values():
        # A producer of imported memory is expected to run, and to signal.
        running = {group.origin.holders for group in member.of(ExternalObject).values()}
        for group in member.of(ImportedSemaphore).values():
            value = -1 if group.wait is None or group.origin.holders in running else group.wait
            found.setdefault((group.origin.holders, group.origin.export), []).append((value, group))
    return found


def _value_of(each: tuple[int, ImportedSemaphore]) -> int:
    return each[0]


def _endless(group: ImportedSemaphore) -> Diagnostic:
    value = f" {group.wait}" if group.timeline else ""
    source = group.origin.text(group.origin.holders[0])
    message = (
        f"semaphore {group.name!r} waits for{value or ' a signal'} of {source}, which nothing in this spec signals"
    )
    note = "the check waits until its timeout, and fails, unless the producer signals by itself"
    help = f"let an entry signal{value or ' it'}, or declare what {group.origin.holders[0]!r} makes under 'external'"
    return Diagnostic("MT705", message, (*group.path, "wait"), notes=(note,), help=help)


Semaphores.joint_rules = (unsignalled,)
SEMAPHORES = Semaphores()
