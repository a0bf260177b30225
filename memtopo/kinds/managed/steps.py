"""Steps of managed memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from memtopo.common.units import KiB
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HOST, Advice, Location, LocationKind, MemAttach, RangeAttribute
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.objects import GpuObjectStep
from memtopo.kinds.resources import STREAMS
from memtopo.kinds.step import ErrorHint, Finding, InChange, Phase, Step, StepDescription, Undoing

_ADVICE = {
    Advice.SET_READ_MOSTLY: ("read mostly", RangeAttribute.READ_MOSTLY),
    Advice.SET_PREFERRED_LOCATION: ("preferred", RangeAttribute.PREFERRED_LOCATION),
    Advice.SET_ACCESSED_BY: ("accessed by", RangeAttribute.ACCESSED_BY),
}
"""Aspect and attribute of each advice."""

_REPORTED = (LocationKind.GPU, LocationKind.HOST)
"""Kinds of locations that range attributes report (fact 60)."""

PAGE = 4 * KiB
"""Unit of advice: other allocations would share a page, and its advice, with others (fact 70)."""

_NOT_CONCURRENT = "{where} cannot use managed memory while the CPU does (fact 60)"


class AllocateManaged(GpuObjectStep, frozen=True):
    """Allocate `size` bytes in whole pages, in a GPU's context; `attach` is GLOBAL or HOST (facts 60, 70).

    Plans count them at the location that they prefer, which advice sets.
    """

    attach: MemAttach
    preferred: Location

    apart = frozenset({"path", "preferred"})
    noun = leaks_as = "managed memory"
    table = "memory"
    addressed = True
    phase = Phase.CREATE
    verb = "allocate managed"
    call = "cuMemAllocManaged"
    passes = ("whole", "attach")
    undoing = Undoing("cuMemFree", "free")
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "no GPU's memory is taken yet: {bytes} of addresses, or of the host's memory, are not to be had (fact 60)",
            "declare less managed memory",
        )
    }

    @property
    def counted(self) -> tuple[Location, int]:
        return self.preferred, self.size

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = layout.memory[self.label].address
        with current(driver, layout.contexts[self.device]):
            base, size = driver.mem_get_address_range(address)
            managed = driver.pointer_is_managed(address)
        yield Finding("managed", self.label, (hex(address), self.whole), (hex(base), size), self.path)
        yield Finding("managed", self.label, "managed", "managed" if managed else "not managed", self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, str(self.preferred), self.size, note=f"attached {self.attach.name.lower()}")

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),)

    @property
    def whole(self) -> int:
        """Bytes of its whole pages."""
        return -(-self.size // PAGE) * PAGE


class ManagedStep(Step, frozen=True):
    """Base of steps about a whole allocation, in the context of `device`. There is nothing to undo."""

    label: str
    device: int

    required: ClassVar = {AllocateManaged.noun: "label"}


class Advise(ManagedStep, frozen=True):
    """Give advice for a whole allocation, which ends with the memory."""

    advice: Advice
    location: Location

    phase = Phase.CREATE
    verb = "advise"
    call = "cuMemAdvise"
    hints: ClassVar = {"INVALID_DEVICE": ErrorHint(_NOT_CONCURRENT, "remove the advice for that GPU")}
    in_change = InChange(renews_needs=True)

    def do(self, driver: Driver, layout: Layout) -> None:
        address, size = layout.memory[self.label]
        with current(driver, layout.contexts[self.device]):
            driver.mem_advise(address, size, self.advice, self.location)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        if self.location.kind not in _REPORTED:
            return
        (address, size), (aspect, attribute) = layout.memory[self.label], _ADVICE[self.advice]
        with current(driver, layout.contexts[self.device]):
            values = driver.mem_range_get_attribute(address, size, attribute)
        yield Finding(aspect, self.label, *self._compared(values), self.path)

    def describe(self) -> StepDescription:
        where = "" if self.advice is Advice.SET_READ_MOSTLY else str(self.location)
        return StepDescription(self.label, where, like=self.advice, note=_ADVICE[self.advice][0])

    def _compared(self, values: tuple[int, ...]) -> tuple[str, str]:
        """Expected and observed location; a list of accessing devices may contain others as well."""
        if self.advice is Advice.SET_READ_MOSTLY:
            return "yes", "yes" if values == (1,) else "no"
        expected, observed = as_reported(self.location), [device_name(each) for each in values]
        if self.advice is Advice.SET_ACCESSED_BY and expected in observed:
            return expected, expected
        return expected, ", ".join(observed) or "none"


class AttachStream(ManagedStep, frozen=True):
    """Attach a whole allocation to the stream of its GPU, since the driver refuses stream 0 (fact 60).

    The attachment ends with the memory. The driver has no query for it.
    """

    phase = Phase.CREATE
    verb = "attach to stream"
    call = "cuStreamAttachMemAsync"
    in_change = InChange(renews_needs=True)
    required: ClassVar = {AllocateManaged.noun: "label", "stream": "device"}

    def do(self, driver: Driver, layout: Layout) -> None:
        address = layout.memory[self.label].address
        with current(driver, layout.contexts[self.device]):
            driver.stream_attach_mem_async(layout.of(STREAMS)[self.device], address, MemAttach.SINGLE)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}")


class Prefetch(ManagedStep, frozen=True):
    """Migrate a whole allocation, in the stream of `device` that the memory is attached to if `own`, else in stream 0.

    `Synchronize` waits for it.
    """

    location: Location
    own: bool

    phase = Phase.SETTLE
    verb = "prefetch"
    call = "cuMemPrefetchAsync"
    hints: ClassVar = {"INVALID_DEVICE": ErrorHint(_NOT_CONCURRENT, "remove 'prefetch'")}

    def do(self, driver: Driver, layout: Layout) -> None:
        address, size = layout.memory[self.label]
        stream = layout.of(STREAMS)[self.device] if self.own else 0
        with current(driver, layout.contexts[self.device]):
            driver.mem_prefetch_async(address, size, self.location, stream)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address, size = layout.memory[self.label]
        with current(driver, layout.contexts[self.device]):
            values = driver.mem_range_get_attribute(address, size, RangeAttribute.LAST_PREFETCH_LOCATION)
        observed = ", ".join(map(device_name, values)) or "none"
        yield Finding("prefetched", self.label, as_reported(self.location), observed, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, str(self.location), like=self.location)


def device_name(ordinal: int) -> str:
    """Name in a spec of a device that a range attribute reports."""
    return "host" if ordinal == HOST else f"gpu{ordinal}"


def as_reported(location: Location) -> str:
    """Name of a location as range attributes report it: all NUMA nodes are `host` (fact 60)."""
    return str(location) if location.kind is LocationKind.GPU else "host"
