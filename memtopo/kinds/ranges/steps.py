"""Steps of ranges."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, Reservation
from memtopo.kinds.step import DEFECT_ADVICE, ErrorHint, Finding, Phase, Step, StepDescription, range_name

_IN_USE = "the addresses are in use in this process: choose others, or leave 'fixed' out (fact 11)"


@dataclass(frozen=True, slots=True)
class ReserveRange(Step):
    """Reserve `size` bytes of addresses, aligned to `align` unless it is 0.

    `address` is a hint (fact 11); with `fixed`, the check requires it.
    """

    label: str
    size: int
    align: int
    address: int
    fixed: bool

    phase = Phase.RESERVE
    verb = "reserve"
    call = "cuMemAddressReserve"
    undo_verb = "free"
    undo_call = "cuMemAddressFree"
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "this is about addresses, not memory: 64 TiB can be reserved, 128 TiB cannot (fact 9)",
            "make the ranges smaller, or give back what this process has reserved",
        ),
        "INVALID_VALUE": ErrorHint(
            "a size must be a multiple of the granularity, an alignment a power of two (facts 9, 10)", DEFECT_ADVICE
        ),
    }
    undo_hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "a range cannot be freed while anything is mapped inside (fact 12)",
            "see which mapping could not be undone",
        )
    }

    @property
    def provides(self) -> Hashable:
        return ("range", self.label)

    def do(self, driver: Driver, layout: Layout) -> None:
        address = driver.mem_address_reserve(self.size, self.align, self.address)
        layout.ranges[self.label] = Reservation(address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.ranges:
            driver.mem_address_free(*layout.ranges[self.label])
            del layout.ranges[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        del driver  # the driver has no query for reservations
        address = layout.ranges[self.label].address
        if self.align:
            yield Finding("alignment", self.label, 0, address % self.align, self.path)
        if self.fixed:
            yield Finding("address", self.label, hex(self.address), hex(address), self.path, _IN_USE)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, "", self.size, (self.align, self.fixed))

    def leak_name(self) -> str:
        return range_name(self.label)
