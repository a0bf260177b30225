"""Advice on how managed memory is going to be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Advice, Location, LocationKind, RangeAttribute
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps.base import Phase, Step, StepDescription, place, spoken
from memtopo.plans.report import Finding

_WORDS = {
    Advice.SET_READ_MOSTLY: "read mostly",
    Advice.SET_PREFERRED_LOCATION: "preferred",
    Advice.SET_ACCESSED_BY: "accessed by",
}
_ATTRIBUTES = {
    Advice.SET_READ_MOSTLY: RangeAttribute.READ_MOSTLY,
    Advice.SET_PREFERRED_LOCATION: RangeAttribute.PREFERRED_LOCATION,
    Advice.SET_ACCESSED_BY: RangeAttribute.ACCESSED_BY,
}


_TOLD = (LocationKind.GPU, LocationKind.HOST)


@dataclass(frozen=True, slots=True)
class Advise(Step):
    """One advice for all of an allocation; `device` is the GPU whose context it is given in.

    There is nothing to undo: it ends with the memory.
    """

    label: str
    advice: Advice
    location: Location
    device: int

    phase = Phase.CREATE
    verb = "advise"
    call = "cuMemAdvise"

    def do(self, driver: Driver, layout: Layout) -> None:
        address, size = layout.managed[self.label]
        with current(driver, layout.contexts[self.device]):
            driver.mem_advise(address, size, self.advice, self.location)

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        if self.location.kind not in _TOLD:
            return  # of a NUMA node the attribute tells nothing (fact 60)
        address, size = layout.managed[self.label]
        with current(driver, layout.contexts[self.device]):
            seen = driver.mem_range_get_attribute(address, size, _ATTRIBUTES[self.advice])
        yield Finding(_WORDS[self.advice], self.label, *self._compared(seen), self.path)

    def describe(self) -> StepDescription:
        where = "" if self.advice is Advice.SET_READ_MOSTLY else str(self.location)
        return StepDescription(self.label, where, like=self.advice, note=_WORDS[self.advice])

    def _compared(self, seen: tuple[int, ...]) -> tuple[str, str]:
        """Wanted and seen; of those who access, who was added, since others may stand beside it."""
        if self.advice is Advice.SET_READ_MOSTLY:
            return "yes", "yes" if seen == (1,) else "no"
        wanted, found = spoken(self.location), [place(each) for each in seen]
        if self.advice is Advice.SET_ACCESSED_BY and wanted in found:
            return wanted, wanted
        return wanted, ", ".join(found) or "nobody"
