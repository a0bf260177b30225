"""Steps of page-locked memory that the driver allocates, and what they share with the steps of registered memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import IntFlag
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import HostFlags, Location, LocationKind
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.step import ErrorHint, Finding, Phase, Readable, Step, StepDescription

PINNED = HostFlags.PORTABLE | HostFlags.DEVICEMAP
"""Flags of all allocations: with unified addressing, memory is mapped and portable without them, too (fact 74)."""


_BLOCK = 2 << 20
"""Bytes of the blocks that smaller allocations share (fact 74)."""


@dataclass(frozen=True, slots=True)
class PinnedStep(Step):
    """Base of steps that page-lock `size` bytes, in the context of the first of `gpus` and for all of them."""

    label: str
    size: int

    @property
    def provides(self) -> Hashable:
        return ("pinned memory", self.label)

    def check_access(
        self, driver: Driver, layout: Layout, gpus: tuple[int, ...], flags: IntFlag, of_block: int = 0
    ) -> Iterator[Finding]:
        """Compare the flags, and the address for each GPU, which is that for the CPU (facts 74, 85).

        Flags `of_block` are those of what was allocated first in a block, by whatever code of the process.
        """
        address = self.address(layout)
        with current(driver, layout.contexts[gpus[0]]):
            found = type(flags)(driver.mem_host_get_flags(address) & ~of_block | flags & of_block)
        yield Finding("flags", self.label, _words(flags), _words(found), self.path)
        for device in gpus:
            with current(driver, layout.contexts[device]):
                seen = driver.mem_host_get_device_pointer(address)
            yield Finding("device address", f"{self.label} by gpu{device}", hex(address), hex(seen), self.path)

    def address(self, layout: Layout) -> int:
        """Address of the memory in a layout."""
        return layout.pinned[self.label].address


@dataclass(frozen=True, slots=True)
class AllocatePinned(PinnedStep):
    """Allocate page-locked host memory (fact 74)."""

    gpus: tuple[int, ...]
    flags: HostFlags

    phase = Phase.CREATE
    verb = "allocate pinned"
    undo_verb = "free pinned"
    call = "cuMemHostAlloc"
    undo_call = "cuMemFreeHost"
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "{bytes} of the host's memory cannot be page-locked: it has less free memory, or a limit in WSL (fact 77)",
            "'free -h' shows the free memory; declare less of it, or offload to a GPU",
        )
    }

    @property
    def allocates(self) -> tuple[Location, int]:
        return Location(LocationKind.HOST), self.size

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return tuple(("context", device) for device in self.gpus)

    @property
    def readable(self) -> Readable:
        return Readable(self.provides, self.label, 0, self.size, self.gpus)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.gpus[0]]):
            layout.pinned[self.label] = Reservation(driver.mem_host_alloc(self.size, self.flags), self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.pinned:
            driver.mem_free_host(layout.pinned[self.label].address)
            del layout.pinned[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = self.address(layout)
        with current(driver, layout.contexts[self.gpus[0]]):
            base, size = driver.mem_get_address_range(address)
        yield Finding("pinned", self.label, (hex(address), self.size), (hex(base), size), self.path)
        of_block = HostFlags.PORTABLE if self.size < _BLOCK else HostFlags.NONE
        yield from self.check_access(driver, layout, self.gpus, self.flags, of_block)

    def describe(self) -> StepDescription:
        note = "write-combined" if HostFlags.WRITECOMBINED in self.flags else ""
        return StepDescription(self.label, "host", self.size, note=note)

    def leak_name(self) -> str:
        return f"page-locked memory {self.label}"

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),)


def _words(flags: IntFlag) -> str:
    """Flags as words: `portable, devicemap`."""
    return ", ".join(str(flag.name or hex(flag)).lower() for flag in flags) or "none"
