"""Steps of access."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Grant
from memtopo.kinds.layout import Layout
from memtopo.kinds.step import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class SetAccess(Step):
    """Grant access to whole mappings without holes between them (fact 20). `MapChunk` checks the result.

    There is nothing to undo: unmapping ends the access, and revoking it would take 24 µs per chunk.
    """

    range: str
    offset: int
    size: int
    grants: tuple[Grant, ...]

    phase = Phase.GRANT
    verb = "grant"
    call = "cuMemSetAccess"

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.mem_set_access(layout.ranges[self.range].address + self.offset, self.size, self.grants)

    def describe(self) -> StepDescription:
        group = self.range.partition(".")[0]
        granted = ", ".join(f"{grant.location} {grant.access.word}" for grant in self.grants)
        return StepDescription(self.range, granted, 0, (group, self.grants))
