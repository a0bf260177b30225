"""External semaphores: created by another API, such as Vulkan, to order its work and that of CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.types import SemaphoreHandleType
from memtopo.geometry.model import Geometry
from memtopo.kinds.external import (
    FROM,
    ExternalObject,
    ProducedGroup,
    failed,
    from_process,
    producer_gpu,
    producer_origin,
    unsupported,
)
from memtopo.kinds.kind import Kind, Scope, Words
from memtopo.kinds.resolution import refuse, together
from memtopo.language.entries import Entry
from memtopo.language.fields import DeviceName, Point, ProducerText
from memtopo.language.scalars import FromWord
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.runs import StepRun
    from memtopo.kinds.step import Step

_Export = tuple[tuple[str, ...], str]
"""Holders of an export, and its name."""


def _schema(via: str, each: dict[str, Any]) -> dict[str, Any]:
    """Schema of the keys `wait` and `signal` for one handle type."""
    return {
        "if": {"properties": {"via": {"const": via}}},
        "then": {"properties": dict.fromkeys(("wait", "signal"), each)},
    }


_TIMELINE = _schema("timeline_fd", {"type": "integer"})

_BINARY = _schema("opaque_fd", {"const": True})


SEMAPHORE_KINDS = {
    each: each
    for each in (
        "timeline_fd", "opaque_fd", "timeline_win32", "opaque_win32", "opaque_win32_kmt", "d3d12_fence", "d3d11_fence",
        "d3d11_keyed_mutex", "d3d11_keyed_mutex_kmt", "nvscisync",
    )
}  # fmt: skip
"""Handle types of external semaphores that the driver knows, by their names in a spec."""

SemaphoreKind = Annotated[str, FromWord(SEMAPHORE_KINDS, "a kind of semaphore")]


class Semaphore(Entry):
    """Semaphore created by another API. The check waits and signals."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_TIMELINE, _BINARY]})

    source: ProducerText = Field(alias="from", description=FROM)
    via: SemaphoreKind = Field(description="timeline_fd, or opaque_fd for a binary semaphore.")
    device: DeviceName = Field(description="GPU whose stream waits and signals.")
    wait: Point | None = Field(default=None, description="Value to wait for; true for a binary semaphore.")
    signal: Point | None = Field(
        default=None, description="Value to signal after the wait; true for a binary semaphore."
    )

    @field_validator("wait", "signal")
    @classmethod
    def _of_its_kind(cls, value: int | Literal[True] | None, info: ValidationInfo) -> int | Literal[True] | None:
        via, key = info.data.get("via"), info.field_name
        if via == "timeline_fd" and value is True:
            message = "a timeline semaphore has values, and 'true' is not a value"
            raise InvalidValue("MT103", message, help=f"write '{key}: 1', or 'via: opaque_fd' for a binary semaphore")
        if via == "opaque_fd" and value is not None and value is not True:
            message = f"a binary semaphore has no values, found {value}"
            raise InvalidValue("MT103", message, help=f"write '{key}: true', or 'via: timeline_fd' for a timeline")
        return value


class ImportedSemaphore(ProducedGroup, frozen=True):
    """One external semaphore. `wait` and `signal` are values of the check, 0 for a binary semaphore.

    None means that the check does not wait, or does not signal.
    """

    noun = "semaphore"
    offered_as = "semaphore"

    timeline: bool = False
    wait: int | None = None
    signal: int | None = None

    def fault(self, machine: Machine) -> str | None:
        """A trial of semaphores of both types; a timeline has to be advertised."""
        trial = machine.trial(self.location, "external-semaphore")
        unadvertised = "the device does not advertise timeline semaphores"
        return failed(trial) or (unadvertised if self.timeline and trial.refused else None)

    @property
    def stream(self) -> int | None:
        """Ordinal of the GPU that needs a stream for it."""
        return self.location.id

    @property
    def points(self) -> tuple[tuple[str, int], ...]:
        """Keys and values of the wait and the signal that the check makes."""
        both = ("wait", self.wait), ("signal", self.signal)
        return tuple((key, value) for key, value in both if value is not None)

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
    """Section `semaphores`."""

    section = "semaphores"
    description = "Semaphores of another API, by name, which order its work and the work of CUDA."
    words = Words(
        "semaphore", "semaphores", "ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1}", drawn="semaphore"
    )
    entry = Semaphore
    group = ImportedSemaphore
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "map": ("a semaphore is not memory", "omit it"),
        "access": ("a semaphore is not memory", "omit it"),
        "exports": (
            "the driver imports semaphores, but does not export them",
            "also import it from its producer in the other process",
        ),
    }

    def resolve_entry(self, scope: Scope, entry: Semaphore, path: Path) -> ImportedSemaphore:
        name, timeline = str(path[-1]), entry.via == "timeline_fd"
        what = f"semaphore {name!r}"
        faults = chain(
            unsupported(what, path, entry.via, "timeline_fd", "opaque_fd"),
            from_process(what, path, entry.source, scope.siblings.spec.processes),
            _decreasing(what, path, entry.wait, entry.signal) if timeline else (),
        )
        location, _ = together(partial(producer_gpu, scope, what, entry.device, path), partial(refuse, faults))
        origin = producer_origin(name, entry.source, "timeline_fd" if timeline else "opaque_fd")
        wait, signal = (0 if point is True else point for point in (entry.wait, entry.signal))
        return ImportedSemaphore(name, path, timeline, wait, signal, location=location, origin=origin)

    def group_steps(self, groups: Sequence[Any]) -> Iterator[Step]:
        from memtopo.kinds.external.steps import DuplicateDescriptor, ImportSemaphore
        from memtopo.kinds.step import HandleReference

        for group in groups:
            yield DuplicateDescriptor(group.path, group.name, HandleReference.of(group, 0))
            kind = SemaphoreHandleType[group.origin.via.upper()]
            yield ImportSemaphore(group.path, group.name, group.location.id, kind)

    def last_steps(self, geometry: Geometry, steps: Sequence[Step | StepRun]) -> Iterator[Step]:
        """One `AwaitStream` for each GPU that waits for a semaphore."""
        waiting = [group for group in geometry.of(ImportedSemaphore).values() if group.wait is not None]
        if not waiting:
            return
        from memtopo.kinds.external.steps import AwaitStream
        from memtopo.kinds.runs import expanded

        for device, path in {group.location.id: group.path for group in reversed(waiting)}.items():
            yield AwaitStream(
                path, device, tuple(name for step in expanded(steps) for name in step.blocked_by_wait(device))
            )

    def refused_changes(self, before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
        """MT808 for each wait and signal that the check of the layout before did not make."""
        for name, group in after.of(ImportedSemaphore).items():
            made = before.of(ImportedSemaphore).get(name)
            same = made if made and (made.origin, made.location) == (group.origin, group.location) else None
            for key, value in group.points:
                if not same or (key, value) not in same.points:
                    adds = f"the change would add a {key} of semaphore {name!r}"
                    message = f"{adds}, and only 'memtopo apply' waits and signals"
                    help = f"omit '{key}', and let the program {key} itself; "
                    help += "or release the layout, and apply the spec"
                    yield Diagnostic("MT808", message, (*group.path, key), "key", help=help)


def unsignalled(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT705 for waits without a signal by the producer or by another entry (facts 56, 58).

    An entry signals after its own wait, so only entries whose waits end can signal.
    """
    sections = ("external", "semaphores", "processes")
    if any(member.has_unresolved(each) for member in (geometry, *geometry.members.values()) for each in sections):
        return
    found: dict[_Export, list[tuple[int, ImportedSemaphore]]] = {}
    for member in geometry.members.values():
        # A producer of imported memory is expected to run, and to signal.
        running = {group.origin.holders for group in member.of(ExternalObject).values()}
        for group in member.of(ImportedSemaphore).values():
            value = -1 if group.wait is None or group.origin.holders in running else group.wait
            found.setdefault(group.origin.identity, []).append((value, group))
    for waits in found.values():
        reached = -1
        for value, group in sorted(waits, key=itemgetter(0)):
            if value > reached:
                awaited = f" {group.wait}" if group.timeline else ""
                holder = group.origin.holders[0]
                what = f"{awaited or ' a signal'} of {group.origin.text(holder)}"
                message = f"semaphore {group.name!r} waits for{what}, which no entry of this spec signals"
                note = "the check fails after its timeout unless the producer signals"
                help = f"signal{awaited or ' it'} in another entry, or declare an object of {holder!r} under 'external'"
                yield Diagnostic("MT705", message, (*group.path, "wait"), notes=(note,), help=help)
            elif group.signal is not None:
                reached = max(reached, group.signal)


def _decreasing(what: str, path: Path, wait: int | None, signal: int | None) -> Iterator[Diagnostic]:
    """Yield MT704 for values that do not increase a timeline, which begins at 0."""
    if wait == 0:
        message = f"{what} waits for 0, the initial value of a timeline"
        yield Diagnostic("MT704", message, (*path, "wait"), help="wait for 1 or more, or omit 'wait'")
    if signal is not None and signal <= (least := wait or 0):
        message = f"{what} signals {signal}, but its timeline is already at {least} or more"
        note = "the driver would decrease the value, and processes waiting for more would wait again (fact 56)"
        label = (Label(f"waits for {wait}", (*path, "wait")),) if wait else ()
        help = f"signal {least + 1} or more"
        yield Diagnostic("MT704", message, (*path, "signal"), labels=label, notes=(note,), help=help)


SEMAPHORES = Semaphores(joint_rules=(unsignalled,))
