"""Access for devices to adjacent mappings."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Grant
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class SetAccess(Step):
    """One call over whole mappings without a hole (fact 20). Each mapping's own check reads the access back.

    There is nothing to undo: access dies with its mapping, and revoking it would cost 24 µs a chunk.
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

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def describe(self) -> StepDescription:
        run = self.range.partition(".")[0]
        granted = ", ".join(f"{grant.location} {grant.access.word}" for grant in self.grants)
        return StepDescription(self.range, granted, 0, (run, self.grants))
