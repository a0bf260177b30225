"""Resources that groups share: contexts, streams and kernels of GPUs, reserved addresses, connections to holders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from msgspec import Struct

from memtopo.common.errors import on_failure
from memtopo.driver.protocol import Driver
from memtopo.driver.types import EventFlags
from memtopo.kinds.layout import Layout, LayoutTable, Reservation, current
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    ErrorHint,
    Finding,
    InChange,
    Phase,
    Step,
    StepDescription,
    TableStep,
    Undoing,
)


class Wait(Struct, frozen=True):
    """Wait of a stream until the producer, `holder`, signals a value of a semaphore, which has a label."""

    semaphore: str
    value: int
    holder: str


WAITING = LayoutTable[int, Wait]()
"""Pending wait of each GPU's stream; removed when a query reports the stream as done."""

MODULES = LayoutTable[int, int]()
"""Loaded kernels by GPU."""
STREAMS = LayoutTable[int, int]()
"""Stream of each GPU that waits for external semaphores, or that managed memory is attached to."""
AWAITED = LayoutTable[int, int]()
"""Stream of a GPU for whose work a change waits, in place of all work of the GPU."""
ATTACHED = LayoutTable[str, int]()
"""Process id of each holder that this layout has a connection to."""


class DeviceStep(Step, frozen=True):
    """Step for a whole GPU, by its ordinal."""

    device: int

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", f"gpu{self.device}")


class RetainContext(DeviceStep, TableStep, frozen=True):
    """Retain the primary context of a GPU.

    It is released and never reset, since other code in the process may use it.
    """

    phase = Phase.OPEN
    verb = "retain context"
    call = "cuDevicePrimaryCtxRetain"
    undoing = Undoing("cuDevicePrimaryCtxRelease", "release context")
    leaks_as = "context of"
    provided = "context", "device"
    table = "contexts"
    named_by = "device"
    passes = ("device",)

    def end(self, driver: Driver, layout: Layout, found: int) -> None:
        driver.device_primary_ctx_release(self.device)

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        """Contexts and kernels of all GPUs: a wait on any GPU blocks them."""
        return RetainContext.leak(f"gpu{self.device}"), LoadKernels.leak(f"gpu{self.device}")


class LoadKernels(DeviceStep, TableStep, frozen=True):
    """Load the kernels of a GPU: before free memory is measured for the first time, until after the last time."""

    phase = Phase.OPEN
    verb = "load kernels"
    call = "cuModuleLoadData"
    undoing = Undoing("cuModuleUnload", "unload kernels")
    leaks_as = "kernels of"
    required: ClassVar = {"context": "device"}
    table = MODULES
    named_by = in_context = "device"
    ended_in_context = True


class CreateStream(DeviceStep, TableStep, frozen=True):
    """Create a stream that can wait for semaphores without blocking the GPU's other work.

    Managed memory may be attached to it. It is destroyed at once, even while it waits (fact 58).
    """

    phase = Phase.CREATE
    verb = "create stream"
    call = "cuStreamCreate"
    undoing = Undoing("cuStreamDestroy", "destroy stream")
    leaks_as = "stream of"
    provided = "stream", "device"
    required: ClassVar = {"context": "device"}
    table = STREAMS
    named_by = in_context = "device"

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        observed = "idle" if driver.stream_query(layout.of(STREAMS)[self.device]) else "busy"
        yield Finding("stream", f"gpu{self.device}", "idle", observed, self.path)


class Synchronize(DeviceStep, frozen=True):
    """Wait for all work of a GPU after building, and again before teardown.

    Teardown skips a GPU whose stream still waits for a producer, since that wait may never end (fact 58). A change that
    waits for one stream of a GPU waits at its end for what it has begun in stream 0.
    """

    phase = Phase.SETTLE
    verb = "synchronize"
    call = "cuCtxSynchronize"
    undoing = Undoing("cuCtxSynchronize")
    in_change = InChange(repeated=True)

    def do(self, driver: Driver, layout: Layout) -> None:
        self._wait(driver, layout, 0)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.device in layout.contexts and self.device not in layout.of(WAITING):
            self._wait(driver, layout, layout.of(AWAITED).get(self.device, 0))

    def _wait(self, driver: Driver, layout: Layout, stream: int) -> None:
        with current(driver, layout.contexts[self.device]):
            if self.device in layout.of(AWAITED):
                event = driver.event_create(EventFlags.DISABLE_TIMING)
                try:
                    driver.event_record(event, stream)
                    driver.event_synchronize(event)
                finally:
                    driver.event_destroy(event)
            else:
                driver.ctx_synchronize()


class Attach(TableStep, frozen=True):
    """Connect to a held layout or a socket, and receive the list of its exports."""

    holder: str

    phase = Phase.IMPORT
    verb = "attach"
    call = "connect"
    undoing = Undoing("close", "detach")
    provided = "holder", "holder"
    table = ATTACHED
    named_by = "holder"

    def do(self, driver: Driver, layout: Layout) -> None:
        layout.of(ATTACHED)[self.holder] = layout.handle_source.attach(self.holder)

    def end(self, driver: Driver, layout: Layout, found: int) -> None:
        layout.handle_source.detach(self.holder)

    def describe(self) -> StepDescription:
        return StepDescription(self.holder, "")


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
