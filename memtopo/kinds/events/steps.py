"""Steps of events."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import EventFlags
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.resources import OWN, Alias, ImportStep
from memtopo.kinds.step import DEFECT_ADVICE, ErrorHint, Finding, HandleReference, Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class EventStep(Step):
    """Base of steps that create or open an event of a GPU."""

    label: str
    device: int

    undo_verb = "destroy"
    undo_call = "cuEventDestroy"

    @property
    def provides(self) -> Hashable:
        return ("event", self.label)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.events:
            driver.event_destroy(layout.events[self.label])
            del layout.events[self.label]


@dataclass(frozen=True, slots=True)
class CreateEvent(EventStep):
    """Create an event without timing; with `shared` it can be exported, which requires a flag at creation (fact 32)."""

    shared: bool

    phase = Phase.CREATE
    verb = "create event"
    call = "cuEventCreate"

    def do(self, driver: Driver, layout: Layout) -> None:
        flags = EventFlags.DISABLE_TIMING | (EventFlags.INTERPROCESS if self.shared else EventFlags(0))
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.event_create(flags)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the state: an event is complete before its first recording (fact 47)."""
        yield Finding("event", self.label, "complete", _state(driver, layout.events[self.label]), self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", note="interprocess" if self.shared else "")

    def leak_name(self) -> str:
        return f"event {self.label}"


@dataclass(frozen=True, slots=True)
class OpenEvent(EventStep, ImportStep):
    """Open the handle of an event, which is destroyed like an event of this process (fact 47)."""

    source: HandleReference

    verb = "open event"
    call = "cuIpcOpenEventHandle"
    hints: ClassVar = {
        "MAP_FAILED": ErrorHint(
            "what was received is not an event (fact 47), or its exporter runs in another pid namespace",
            "see what the exporter sends; containers have to share a pid namespace (--pid)",
        )
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.source.fetch_bytes(layout.handle_source)
        with current(driver, layout.contexts[self.device]):
            layout.events[self.label] = driver.ipc_open_event_handle(handle)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        yield Finding("event", self.label, "open", "open" if self.label in layout.events else "gone", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, like=self.source.holder, note="ipc")

    def leak_name(self) -> str:
        return f"opened event {self.label}"


@dataclass(frozen=True, slots=True)
class AliasEvent(Alias):
    """Use an event of this process as one that it imports from itself, which it cannot open (fact 47)."""

    verb = "alias event"
    call = "cuIpcOpenEventHandle"
    noun = "event"

    def objects(self, layout: Layout) -> dict[str, Any]:
        return layout.events

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        return CreateEvent(self.path, self.label, self.device, shared=True).check(driver, layout)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.own, note=OWN)


@dataclass(frozen=True, slots=True)
class TryExportEvent(Step):
    """Request the handle as a test. Its 64 bytes are secret, and are not kept."""

    label: str
    event: str
    device: int

    phase = Phase.EXPORT
    verb = "export event"
    call = "cuIpcGetEventHandle"
    hints: ClassVar = {
        "INVALID_HANDLE": ErrorHint("the event was created for one process (facts 32, 47)", DEFECT_ADVICE)
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("event", self.event),)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            driver.ipc_get_event_handle(layout.events[self.event])

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.event, note="ipc")


def _state(driver: Driver, event: int) -> str:
    return "complete" if driver.event_query(event) else "not ready"
