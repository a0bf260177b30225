"""Steps of memory pools and of their allocations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import ClassVar

from memtopo.common.errors import on_failure
from memtopo.common.units import rounded
from memtopo.driver.handles import Handle, Secret
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, HandleType, Location, PoolAttribute, PoolProperties
from memtopo.kinds.ipc.steps import BufferStep
from memtopo.kinds.layout import Layout, LayoutTable, Reservation
from memtopo.kinds.objects import Alias, ImportStep, ObjectStep, TryExport
from memtopo.kinds.step import (
    PROBE_ADVICE,
    ErrorHint,
    Finding,
    HandleReference,
    Phase,
    Readable,
    StepDescription,
    TableStep,
    Undoing,
)

_DEFAULTS = {PoolAttribute.RELEASE_THRESHOLD: 0}
"""Values that a new pool has; every other attribute that can be set is 1 (fact 80)."""


POOL_HANDLES = LayoutTable[str, int]()
"""Stream-ordered pools, created and imported. Their allocations are in `Layout.memory`."""
POOL_IMPORTS = LayoutTable[int, int]()
"""Number of imports of each imported pool: the driver returns the same handle for a pool each time (fact 82)."""
POOL_SETTINGS = LayoutTable[tuple[str, PoolAttribute], int]()
"""Values of attributes that are set, by the label of the pool."""
POOL_POINTERS = LayoutTable[str, tuple[int, bytes]]()
"""Imported pool of each imported allocation, and a digest of the bytes that name it there."""
POOL_GRANTS = LayoutTable[str, tuple[Grant, ...]]()
"""Access that is set for pools besides that of their own locations."""


class OpenPool(ObjectStep, frozen=True):
    """Base of steps that create or import a pool, which is destroyed after its allocations are freed."""

    device: int

    noun = "pool"
    table = POOL_HANDLES
    leaks_as = "pool"
    undoing = Undoing("cuMemPoolDestroy", "destroy pool")


class PoolSetting(TableStep, frozen=True):
    """Base of steps that change a pool, in the context of a GPU."""

    label: str
    device: int

    phase = Phase.CREATE
    required: ClassVar = {"pool": "label"}


class CreatePool(OpenPool, frozen=True):
    """Create a pool, which reserves no memory before the first allocation (fact 80)."""

    properties: PoolProperties

    phase = Phase.CREATE
    verb = "create pool"
    call = "cuMemPoolCreate"
    passes = ("properties",)
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint("{where} does not support memory pools", PROBE_ADVICE),
        "INVALID_VALUE": ErrorHint("{where} does not support pools with these handle types (fact 80)", PROBE_ADVICE),
        "OUT_OF_MEMORY": ErrorHint(
            "the maximum size is more than the driver has addresses for (fact 80)", "lower 'max_size'"
        ),
    }

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the access of the location that has the memory."""
        found = Access(driver.mem_pool_get_access(layout.of(POOL_HANDLES)[self.label], self.properties.location))
        subject = f"{self.label} for {self.properties.location}"
        yield Finding("pool access", subject, Access.RW.word, found.word, self.path)

    def describe(self) -> StepDescription:
        limit = [f"at most {rounded(self.properties.max_size)}"] if self.properties.max_size else []
        note = ", ".join([*self.properties.handles.words, *limit])
        return StepDescription(self.label, str(self.properties.location), note=note)


class SetPoolAttribute(PoolSetting, frozen=True):
    """Set one attribute of a pool; the undo restores the value of a new pool."""

    attribute: PoolAttribute
    value: int

    verb = "set pool attribute"
    call = "cuMemPoolSetAttribute"
    undoing = Undoing("cuMemPoolSetAttribute", "reset pool attribute")
    table = POOL_SETTINGS

    @property
    def key(self) -> tuple[str, PoolAttribute]:
        return self.label, self.attribute

    def arguments(self, layout: Layout) -> tuple[int, PoolAttribute, int]:
        return layout.of(POOL_HANDLES)[self.label], self.attribute, self.value

    def kept(self, made: None) -> int:
        return self.value

    def end(self, driver: Driver, layout: Layout, found: int) -> None:
        default = _DEFAULTS.get(self.attribute, 1)
        driver.mem_pool_set_attribute(layout.of(POOL_HANDLES)[self.label], self.attribute, default)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        found = driver.mem_pool_get_attribute(layout.of(POOL_HANDLES)[self.label], self.attribute)
        yield Finding("pool", f"{self.label} {self._word}", self.value, found, self.path)

    def describe(self) -> StepDescription:
        size = self.attribute is PoolAttribute.RELEASE_THRESHOLD
        note = f"{self._word} {rounded(self.value) if size else 'off'}"
        return StepDescription(self.label, f"gpu{self.device}", note=note)

    @property
    def _word(self) -> str:
        return self.attribute.name.lower().replace("_", " ")


class SetPoolAccess(PoolSetting, frozen=True):
    """Set the access of other locations than a pool's own to all of its allocations (fact 81).

    The undo takes it away before the pool is destroyed, since a later pool may have it otherwise (fact 81).
    """

    grants: tuple[Grant, ...]

    verb = "set pool access"
    call = "cuMemPoolSetAccess"
    undoing = Undoing("cuMemPoolSetAccess", "take pool access")
    table = POOL_GRANTS
    hints: ClassVar = {
        "INVALID_DEVICE": ErrorHint("a GPU has no peer access to the pool's memory (fact 81)", PROBE_ADVICE),
        "INVALID_VALUE": ErrorHint("a GPU has no peer access to the pool's memory (fact 81)", PROBE_ADVICE),
    }

    def arguments(self, layout: Layout) -> tuple[int, tuple[Grant, ...]]:
        return layout.of(POOL_HANDLES)[self.label], self.grants

    def kept(self, made: None) -> tuple[Grant, ...]:
        return self.grants

    def end(self, driver: Driver, layout: Layout, found: tuple[Grant, ...]) -> None:
        others = {grant for label in sharing(layout, self.label) for grant in layout.of(POOL_GRANTS).get(label, ())}
        none = tuple(grant._replace(access=Access.NONE) for grant in found if grant not in others)
        if none:
            driver.mem_pool_set_access(layout.of(POOL_HANDLES)[self.label], none)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        for location, access in self.grants:
            found = Access(driver.mem_pool_get_access(layout.of(POOL_HANDLES)[self.label], location))
            yield Finding("pool access", f"{self.label} for {location}", access.word, found.word, self.path)

    def describe(self) -> StepDescription:
        note = ", ".join(f"{location} {access.word}" for location, access in self.grants)
        return StepDescription(self.label, f"gpu{self.device}", note=note)


class SetImportedAccess(SetPoolAccess, frozen=True):
    """Set access to an imported pool, which has that of its own location only, whatever its exporter set (fact 82).

    A pool that a process imports from itself keeps its other access.
    """

    phase = Phase.IMPORT


class ImportPool(OpenPool, ImportStep, frozen=True):
    """Import a pool, of which single allocations are imported next; the descriptor may be closed at once (fact 82)."""

    source: HandleReference

    verb = "import pool"
    note = "fd"
    call = "cuMemPoolImportFromShareableHandle"
    hints: ClassVar = dict.fromkeys(
        ("INVALID_VALUE", "UNKNOWN"),
        ErrorHint("the received object is not a pool (fact 82)", "check the object that the exporter sends"),
    )

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = self.source.fetch_descriptor(layout.handle_source)
        pool = driver.mem_pool_import_from_shareable_handle(fd, HandleType.FD)
        layout.of(POOL_IMPORTS)[pool] = layout.of(POOL_IMPORTS).get(pool, 0) + 1
        layout.of(POOL_HANDLES)[self.label] = pool

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Destroy the pool once for each import of it, with the last of its labels.

        Two exports of one pool give the same handle, which cannot be destroyed while anything of it is used (fact 82).
        """
        if self.label not in layout.of(POOL_HANDLES):
            return
        pool = layout.of(POOL_HANDLES)[self.label]
        if not sharing(layout, self.label):
            while layout.of(POOL_IMPORTS)[pool]:
                driver.mem_pool_destroy(pool)
                layout.of(POOL_IMPORTS)[pool] -= 1
            del layout.of(POOL_IMPORTS)[pool]
        del layout.of(POOL_HANDLES)[self.label]


class AliasPool(Alias, frozen=True):
    """Use a pool of this process as one that it imports from itself, to set the access that the import declares."""

    opens = ImportPool


def sharing(layout: Layout, label: str) -> list[str]:
    """Other labels of the same pool: of further imports, and of an own pool that is imported."""
    pool = layout.of(POOL_HANDLES)[label]
    return [other for other, handle in layout.of(POOL_HANDLES).items() if handle == pool and other != label]


class AllocationStep(BufferStep, frozen=True):
    """Base of steps that allocate from a pool, or import an allocation; `readers` are the GPUs with access."""

    pool: str
    readers: tuple[int, ...]

    noun = "allocation"
    leaks_as = "allocation"
    aspect = "allocation"

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare address and size, for the GPU that has the memory or has access to it."""
        if self.device in self.readers:
            yield from BufferStep.check(self, driver, layout)

    def blocks(self) -> tuple[str, ...]:
        return (OpenPool.leak(self.pool),)


class AllocateFromPool(AllocationStep, frozen=True):
    """Allocate `size` bytes from a pool in stream 0 of a GPU, whose work is waited for after building (fact 80).

    It is freed in stream 0: `cuMemFree` would leave it counted as in use by its pool (fact 80). Its memory is back once
    the pool is destroyed, or the GPU is waited for at the end of a change.
    """

    location: Location

    phase = Phase.CREATE
    verb = "allocate from pool"
    call = "cuMemAllocFromPoolAsync"
    undoing = Undoing("cuMemFreeAsync", "free")
    ended_in_context = True
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "the pool has reserved its maximum size, or {where} has no room for {bytes} (fact 80)",
            "raise 'max_size', or free memory there",
        )
    }
    required: ClassVar = {"pool": "pool"}

    @property
    def allocates(self) -> tuple[Location, int]:
        return self.location, self.size

    @property
    def readable(self) -> Readable:
        return Readable(self.provides, self.label, 0, self.size, self.readers)

    def arguments(self, layout: Layout) -> tuple[int, int]:
        return self.size, layout.of(POOL_HANDLES)[self.pool]

    def describe(self) -> StepDescription:
        return StepDescription(self.label, str(self.location), self.size, self.pool)


class ImportPointer(AllocationStep, ImportStep, frozen=True):
    """Import one allocation of an imported pool, once in a layout, and free it before its exporter does (fact 82).

    What other exports offer too is imported with the first of them.
    """

    source: HandleReference

    verb = "import allocation"
    note = "fd"
    call = "cuMemPoolImportPointer"
    undoing = Undoing("cuMemFree", "free")
    leaks_as = "imported allocation"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "the exporter has freed the memory, or it belongs to another pool (fact 82)",
            "keep it allocated while it is used",
        ),
        "ALREADY_MAPPED": ErrorHint(
            "this process has imported the allocation already (fact 82)", "import it once in each process"
        ),
    }
    required: ClassVar = {"holder": "source.holder", "pool": "pool"}

    def do(self, driver: Driver, layout: Layout) -> None:
        data, pool = self.source.fetch_bytes(layout.handle_source), layout.of(POOL_HANDLES)[self.pool]
        named = pool, sha256(data).digest()
        same = next((label for label, other in layout.of(POOL_POINTERS).items() if other == named), None)
        address = layout.buffers[same].address if same else driver.mem_pool_import_pointer(pool, data)
        layout.of(POOL_POINTERS)[self.label] = named
        layout.buffers[self.label] = Reservation(address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Free it with the last of its labels: the first free would unmap it for all (fact 82)."""
        named = layout.of(POOL_POINTERS).get(self.label)
        if named is None:
            return
        if sum(other == named for other in layout.of(POOL_POINTERS).values()) == 1:
            driver.mem_free(layout.buffers[self.label].address)
        del layout.buffers[self.label], layout.of(POOL_POINTERS)[self.label]


class AliasAllocation(Alias, frozen=True):
    """Use an allocation of this process as one that it imports from itself (fact 82)."""

    opens = ImportPointer


class TryExportAllocation(TryExport, frozen=True):
    """Export the pool and the pointer of an allocation as a test."""

    pool: str

    verb = "export allocation"
    call = "cuMemPoolExportToShareableHandle"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint("the pool cannot be shared (fact 82)", "'memtopo probe' shows what can")
    }
    calls = 2

    def export(self, driver: Driver, layout: Layout) -> Handle:
        """Descriptor of the pool with the bytes of the allocation.

        The pool is exported first: before any export of it, the driver may refuse its pointers (fact 82).
        """
        fd = driver.mem_pool_export_to_shareable_handle(layout.of(POOL_HANDLES)[self.pool], HandleType.FD)
        assert isinstance(fd, int)
        with on_failure(os.close, fd):
            return Handle(fd, Secret(driver.mem_pool_export_pointer(layout.buffers[self.object].address)))
