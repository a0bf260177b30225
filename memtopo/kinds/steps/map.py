"""A whole chunk, mapped into a reserved range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.common.errors import InternalError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import Phase, Step, StepDescription, range_name
from memtopo.plans.report import Finding

_WELL = Finding("access", "", "", "")
"""Words are made for what differs alone: there are as many findings as mappings and GPUs."""


@dataclass(frozen=True, slots=True)
class MapChunk(Step):
    """`chunk` at `offset` of `range`. `access` is what each location of the machine shall have once all is granted."""

    range: str
    offset: int
    chunk: str
    size: int
    access: tuple[Grant, ...]

    phase = Phase.MAP
    verb = "map"
    call = "cuMemMap"
    undo_call = "cuMemUnmap"

    def do(self, driver: Driver, layout: Layout) -> None:
        base, size = layout.ranges[self.range]
        if self.offset + self.size > size:
            # The driver would map it into a neighbour's addresses (fact 15).
            raise InternalError(f"{self.chunk} at {self.offset:#x} runs past the end of {self.range}")
        driver.mem_map(base + self.offset, self.size, layout.chunks[self.chunk])
        layout.mappings[base + self.offset] = self.chunk

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.range not in layout.ranges:
            return
        address = layout.ranges[self.range].address + self.offset
        if address in layout.mappings:
            driver.mem_unmap(address, self.size)
            del layout.mappings[address]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.ranges[self.range].address + self.offset
        subject = f"{self.chunk} in {self.range} at {self.offset:#x}"
        handle = layout.retained[self.chunk] = driver.mem_retain_allocation_handle(address)
        driver.mem_release(handle)
        del layout.retained[self.chunk]
        yield Finding("mapped chunk", subject, layout.chunks[self.chunk], handle, self.path)
        for location, access in self.access:
            seen = driver.mem_get_access(address, location)
            if seen == access:
                yield _WELL
            else:
                yield Finding("access", f"{subject} for {location}", access.word, Access(seen).word, self.path)

    def describe(self) -> StepDescription:
        run = self.range.partition(".")[0]
        return StepDescription(self.chunk, run, self.size, run)

    def leak_name(self) -> str:
        return f"mapping of {self.chunk} in {self.range} at {self.offset:#x}"

    def blocks(self) -> tuple[str, ...]:
        return (range_name(self.range),)
