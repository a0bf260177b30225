"""A chunk of physical memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Location, LocationKind, Properties
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import Phase, Step, StepDescription
from memtopo.kinds.steps.held import release_chunk
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class CreateChunk(Step):
    """`size` bytes with exactly these properties (fact 3)."""

    label: str
    size: int
    properties: Properties

    phase = Phase.CREATE
    verb = "create"
    call = "cuMemCreate"
    undo_call = "cuMemRelease"

    def do(self, driver: Driver, layout: Layout) -> None:
        layout.chunks[self.label] = driver.mem_create(self.size, self.properties)

    def undo(self, driver: Driver, layout: Layout) -> None:
        release_chunk(driver, layout, self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        seen = driver.mem_get_allocation_properties_from_handle(layout.chunks[self.label])
        yield Finding("properties", self.label, _as_reported(self.properties), seen, self.path)

    def describe(self) -> StepDescription:
        asked = self.properties
        words = [
            *asked.handles.words,
            *(["rdma"] if asked.rdma else []),
            *(["compressible"] if asked.compressible else []),
        ]
        return StepDescription(self.label, str(asked.location), self.size, note=", ".join(words))

    def leak_name(self) -> str:
        return f"chunk {self.label}"


def _as_reported(asked: Properties) -> Properties:
    """HOST memory comes back as that of NUMA node 0 (fact 6)."""
    if asked.location.kind is LocationKind.HOST:
        return asked._replace(location=Location(LocationKind.HOST_NUMA, 0))
    return asked
