"""A chunk that another process created."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType, Location
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import HandleRequest, Phase, Step, StepDescription
from memtopo.kinds.steps.held import release_chunk
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class ImportChunk(Step):
    """Takes one handle from the exchange and imports it; `location` is where this process sees it (fact 43).

    The imported handle has a reference of its own, so the exchange may close the descriptor from then on.
    """

    label: str
    size: int
    location: Location
    kind: HandleType
    ask: HandleRequest

    phase = Phase.IMPORT
    verb = "import"
    call = "cuMemImportFromShareableHandle"
    undo_call = "cuMemRelease"

    def do(self, driver: Driver, layout: Layout) -> None:
        shared = self.ask.taken(layout.handle_source)
        layout.chunks[self.label] = driver.mem_import_from_shareable_handle(shared, self.kind)

    def undo(self, driver: Driver, layout: Layout) -> None:
        release_chunk(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        seen = driver.mem_get_allocation_properties_from_handle(layout.chunks[self.label])
        yield Finding(
            "imported", self.label, (self.location, HandleType.NONE), (seen.location, seen.handles), self.path
        )

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.ask.text, self.size, self.ask.holder, ", ".join(self.kind.words))

    def leak_name(self) -> str:
        return f"imported chunk {self.label}"
