"""Steps of allocations of memory pools."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

from memtopo.driver.handles import Handle, Secret
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType, Location
from memtopo.kinds.buffers.steps import BufferStep
from memtopo.kinds.layout import Layout, Reservation, current
from memtopo.kinds.pools.steps import pool_name
from memtopo.kinds.resources import OWN, Alias, ImportStep
from memtopo.kinds.step import (
    ErrorHint,
    Finding,
    HandleReference,
    Phase,
    Readable,
    Step,
    StepDescription,
    handles_tested,
)


@dataclass(frozen=True, slots=True)
class AllocationStep(BufferStep):
    """Base of steps that allocate from a pool, or import an allocation; `readers` are the GPUs with access."""

    pool: str
    readers: tuple[int, ...]

    aspect = "allocation"
    undo_verb = "free"

    @property
    def provides(self) -> Hashable:
        return ("allocation", self.label)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare address and size, for the GPU that has the memory or has access to it."""
        if self.device in self.readers:
            yield from BufferStep.check(self, driver, layout)

    def leak_name(self) -> str:
        return f"allocation {self.label}"

    def blocks(self) -> tuple[str, ...]:
        return (pool_name(self.pool),)


@dataclass(frozen=True, slots=True)
class AllocateFromPool(AllocationStep):
    """Allocate `size` bytes from a pool in stream 0 of a GPU, whose work is waited for after building (fact 80)."""

    location: Location

    phase = Phase.CREATE
    verb = "allocate from pool"
    call = "cuMemAllocFromPoolAsync"
    undo_call = "cuMemFreeAsync"
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "the pool has reserved its maximum size, or {where} has no room for {bytes} (fact 80)",
            "raise 'max_size', or free memory there",
        )
    }

    @property
    def allocates(self) -> tuple[Location, int]:
        return self.location, self.size

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("pool", self.pool),)

    @property
    def readable(self) -> Readable:
        return Readable(self.provides, self.label, 0, self.size, self.readers)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            address = driver.mem_alloc_from_pool_async(self.size, layout.memory_pools[self.pool])
            layout.buffers[self.label] = Reservation(address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Free it in stream 0: `cuMemFree` would leave it counted as in use by its pool (fact 80).

        Its memory is back once the pool is destroyed, or the GPU is waited for at the end of a change.
        """
        if self.label in layout.buffers:
            with current(driver, layout.contexts[self.device]):
                driver.mem_free_async(layout.buffers[self.label].address)
                del layout.buffers[self.label]

    def describe(self) -> StepDescription:
        return StepDescription(self.label, str(self.location), self.size, self.pool)


@dataclass(frozen=True, slots=True)
class ImportPointer(AllocationStep, ImportStep):
    """Import one allocation of an imported pool, once in a layout, and free it before its exporter does (fact 82).

    What other exports offer too is imported with the first of them.
    """

    source: HandleReference

    verb = "import allocation"
    call = "cuMemPoolImportPointer"
    undo_call = "cuMemFree"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "the exporter has freed the memory, or it is of another pool (fact 82)",
            "keep it allocated for as long as it is used",
        ),
        "ALREADY_MAPPED": ErrorHint(
            "this process has imported the allocation already (fact 82)", "import it once in each process"
        ),
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("holder", self.source.holder), ("pool", self.pool))

    def do(self, driver: Driver, layout: Layout) -> None:
        data, pool = self.source.fetch_bytes(layout.handle_source), layout.memory_pools[self.pool]
        named = pool, sha256(data).digest()
        same = next((label for label, other in layout.pool_pointers.items() if other == named), None)
        address = layout.buffers[same].address if same else driver.mem_pool_import_pointer(pool, data)
        layout.pool_pointers[self.label] = named
        layout.buffers[self.label] = Reservation(address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Free it with the last of its labels: the first free would unmap it for all (fact 82)."""
        named = layout.pool_pointers.get(self.label)
        if named is None:
            return
        if sum(other == named for other in layout.pool_pointers.values()) == 1:
            driver.mem_free(layout.buffers[self.label].address)
        del layout.buffers[self.label], layout.pool_pointers[self.label]

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, self.size, self.source.holder, "fd")

    def leak_name(self) -> str:
        return f"imported allocation {self.label}"


@dataclass(frozen=True, slots=True)
class AliasAllocation(Alias):
    """Use an allocation of this process as one that it imports from itself (fact 82)."""

    verb = "alias allocation"
    call = "cuMemPoolImportPointer"
    noun = "allocation"

    def objects(self, layout: Layout) -> dict[str, Any]:
        return layout.buffers

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.own, like=self.own.partition(".")[0], note=OWN)


@dataclass(frozen=True, slots=True)
class TryExportAllocation(Step):
    """Export the pool and the pointer of the first of `count` allocations as a test; the descriptor is closed."""

    label: str
    allocation: str
    pool: str
    count: int

    phase = Phase.EXPORT
    verb = "export allocation"
    call = "cuMemPoolExportToShareableHandle"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint("the pool cannot be shared (fact 82)", "'memtopo probe' shows what can")
    }

    @property
    def calls(self) -> int:
        return 2

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("allocation", self.allocation),)

    def do(self, driver: Driver, layout: Layout) -> None:
        exported_handle(driver, layout.memory_pools[self.pool], layout.buffers[self.allocation].address).close()

    def describe(self) -> StepDescription:
        note = handles_tested(["fd"], self.count)
        return StepDescription(self.label, self.allocation.partition(".")[0], note=note)


def exported_handle(driver: Driver, pool: int, address: int) -> Handle:
    """Descriptor of a pool with the bytes of one of its allocations; the caller closes it.

    The pool is exported first: before any export of it, the driver may refuse its pointers (fact 82).
    """
    fd = driver.mem_pool_export_to_shareable_handle(pool, HandleType.FD)
    assert isinstance(fd, int)
    try:
        return Handle(fd=fd, secret=Secret(driver.mem_pool_export_pointer(address)))
    except BaseException:
        os.close(fd)
        raise
