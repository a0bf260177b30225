"""Steps of ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from memtopo.common.errors import on_failure
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, LayoutTable, Reservation
from memtopo.kinds.step import DEFECT_ADVICE, ErrorHint, Finding, Phase, StepDescription, TableStep, Undoing

SAME_ADDRESS = "same address in all processes"

FIRST_AGREED = 1 << 45
"""First address that processes try for a range at the same address: executables, their heaps and libraries are above,
and what sanitizers reserve is below."""

_IN_USE = "the addresses are in use in this process: choose others, or omit 'fixed' (fact 11)"


AGREED = LayoutTable[str, int]()
"""Addresses that all instances of a counted process have agreed on."""


class ReserveRange(TableStep, frozen=True):
    """Reserve `size` bytes of addresses, aligned to `align` unless it is 0.

    `address` is a hint (fact 11); with `fixed`, the check requires it. With `same`, the instances of a counted process
    agree on an address after each has reserved the range, and the check requires that one.
    """

    label: str
    size: int
    align: int
    address: int
    fixed: bool
    same: bool = False

    phase = Phase.RESERVE
    verb = "reserve"
    call = "cuMemAddressReserve"
    undoing = Undoing("cuMemAddressFree", "free")
    leaks_as = "range"
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "this is about addresses, not memory: 64 TiB can be reserved, 128 TiB cannot (fact 9)",
            "make the ranges smaller, or free other reservations of this process",
        ),
        "INVALID_VALUE": ErrorHint(
            "a size must be a multiple of the granularity, an alignment a power of two (facts 9, 10)", DEFECT_ADVICE
        ),
    }
    provided = "range", "label"
    table = "ranges"

    @property
    def own_address(self) -> int:
        return self.address if self.fixed else 0

    def do(self, driver: Driver, layout: Layout) -> None:
        self._reserve(driver, layout, self.address or (max(FIRST_AGREED, self.align) if self.same else 0))

    def _reserve(self, driver: Driver, layout: Layout, hint: int) -> None:
        address = driver.mem_address_reserve(self.size, self.align, hint)
        layout.ranges[self.label] = Reservation(address, self.size)

    def end(self, driver: Driver, layout: Layout, found: Reservation) -> None:
        driver.mem_address_free(*found)

    def relocate(self, driver: Driver, layout: Layout, address: int) -> None:
        """Reserve the range anew, with an address as the hint, before anything is mapped in it."""
        driver.mem_address_free(*layout.ranges[self.label])
        with on_failure(layout.ranges.pop, self.label):
            self._reserve(driver, layout, address)  # at its place in the order of the ranges

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.ranges[self.label].address
        if self.align:
            yield Finding("alignment", self.label, 0, address % self.align, self.path)
        if self.fixed:
            yield Finding("address", self.label, hex(self.address), hex(address), self.path, _IN_USE)
        if self.same:
            agreed = layout.of(AGREED).get(self.label)
            expected = "one of all processes" if agreed is None else hex(agreed)
            yield Finding("address", self.label, expected, hex(address), self.path)

    def describe(self) -> StepDescription:
        note = SAME_ADDRESS if self.same else ""
        return StepDescription(self.label, "", self.size, (self.align, self.fixed), note)


def common_ranges(steps: Iterable[object]) -> list[ReserveRange]:
    """Steps that reserve ranges for which all instances of a counted process agree on an address."""
    return [step for step in steps if isinstance(step, ReserveRange) and step.same]
