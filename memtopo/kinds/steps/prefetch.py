"""Managed memory, moved to where it is going to be used first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Location, RangeAttribute
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription, place, spoken
from memtopo.plans.report import Finding


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """Moves all of an allocation, in a stream of `device`: where `own`, the one that the memory is attached to.

    It is waited for with the GPU's other work. There is nothing to undo.
    """

    label: str
    location: Location
    device: int
    own: bool

    phase = Phase.SETTLE
    verb = "prefetch"
    call = "cuMemPrefetchAsync"

    def do(self, driver: Driver, layout: Layout) -> None:
        address, size = layout.managed[self.label]
        stream = layout.streams[self.device] if self.own else 0
        with current(driver, layout.contexts[self.device]):
            driver.mem_prefetch_async(address, size, self.location, stream)

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address, size = layout.managed[self.label]
        with current(driver, layout.contexts[self.device]):
            seen = driver.mem_range_get_attribute(address, size, RangeAttribute.LAST_PREFETCH_LOCATION)
        told = ", ".join(map(place, seen)) or "nowhere"
        yield Finding("prefetched", self.label, spoken(self.location), told, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, str(self.location), like=self.location)
