"""Steps of memory pools."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from memtopo.common.units import rounded
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, HandleType, PoolAttribute, PoolProperties
from memtopo.kinds.layout import Layout
from memtopo.kinds.resources import OWN, Alias, ImportStep
from memtopo.kinds.step import PROBE_ADVICE, ErrorHint, Finding, HandleReference, Phase, Step, StepDescription

_DEFAULTS = {PoolAttribute.RELEASE_THRESHOLD: 0}
"""Values that a new pool has; every other attribute that can be set is 1 (fact 80)."""


@dataclass(frozen=True, slots=True)
class PoolStep(Step):
    """Base of steps about a pool, in the context of a GPU."""

    label: str
    device: int


@dataclass(frozen=True, slots=True)
class OpenPool(PoolStep):
    """Base of steps that create or import a pool, which is destroyed after its allocations are freed."""

    undo_verb = "destroy pool"
    undo_call = "cuMemPoolDestroy"

    @property
    def provides(self) -> Hashable:
        return ("pool", self.label)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.memory_pools:
            driver.mem_pool_destroy(layout.memory_pools[self.label])
            del layout.memory_pools[self.label]

    def leak_name(self) -> str:
        return pool_name(self.label)


@dataclass(frozen=True, slots=True)
class CreatePool(OpenPool):
    """Create a pool, which reserves no memory before the first allocation (fact 80)."""

    properties: PoolProperties

    phase = Phase.CREATE
    verb = "create pool"
    call = "cuMemPoolCreate"
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint("{where} does not support memory pools", PROBE_ADVICE),
        "INVALID_VALUE": ErrorHint("{where} does not support pools with these handle types (fact 80)", PROBE_ADVICE),
        "OUT_OF_MEMORY": ErrorHint(
            "the maximum size is more than the driver has addresses for (fact 80)", "lower 'max_size'"
        ),
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        layout.memory_pools[self.label] = driver.mem_pool_create(self.properties)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the access of the location that has the memory."""
        found = Access(driver.mem_pool_get_access(layout.memory_pools[self.label], self.properties.location))
        subject = f"{self.label} for {self.properties.location}"
        yield Finding("pool access", subject, Access.RW.word, found.word, self.path)

    def describe(self) -> StepDescription:
        limit = [f"at most {rounded(self.properties.max_size)}"] if self.properties.max_size else []
        note = ", ".join([*self.properties.handles.words, *limit])
        return StepDescription(self.label, str(self.properties.location), note=note)


@dataclass(frozen=True, slots=True)
class SetPoolAttribute(PoolStep):
    """Set one attribute of a pool; the undo restores the value of a new pool."""

    attribute: PoolAttribute
    value: int

    phase = Phase.CREATE
    verb = "set pool attribute"
    undo_verb = "reset pool attribute"
    call = "cuMemPoolSetAttribute"
    undo_call = "cuMemPoolSetAttribute"

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("pool", self.label),)

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.mem_pool_set_attribute(layout.memory_pools[self.label], self.attribute, self.value)
        layout.pool_settings.add((self.label, self.attribute))

    def undo(self, driver: Driver, layout: Layout) -> None:
        if (self.label, self.attribute) in layout.pool_settings:
            default = _DEFAULTS.get(self.attribute, 1)
            driver.mem_pool_set_attribute(layout.memory_pools[self.label], self.attribute, default)
            layout.pool_settings.remove((self.label, self.attribute))

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        found = driver.mem_pool_get_attribute(layout.memory_pools[self.label], self.attribute)
        yield Finding("pool", f"{self.label} {self._word}", self.value, found, self.path)

    def describe(self) -> StepDescription:
        size = self.attribute is PoolAttribute.RELEASE_THRESHOLD
        note = f"{self._word} {rounded(self.value) if size else 'off'}"
        return StepDescription(self.label, f"gpu{self.device}", note=note)

    @property
    def _word(self) -> str:
        return self.attribute.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class SetPoolAccess(PoolStep):
    """Set the access of other locations than a pool's own to all of its allocations (fact 81).

    The undo takes it away before the pool is destroyed, since a later pool may have it otherwise (fact 81).
    """

    grants: tuple[Grant, ...]

    phase = Phase.CREATE
    verb = "set pool access"
    undo_verb = "take pool access"
    call = "cuMemPoolSetAccess"
    undo_call = "cuMemPoolSetAccess"
    hints: ClassVar = {
        "INVALID_DEVICE": ErrorHint("a GPU has no peer access to the pool's memory (fact 81)", PROBE_ADVICE),
        "INVALID_VALUE": ErrorHint("a GPU has no peer access to the pool's memory (fact 81)", PROBE_ADVICE),
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("pool", self.label),)

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.mem_pool_set_access(layout.memory_pools[self.label], self.grants)
        layout.pool_grants[self.label] = self.grants

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.pool_grants:
            kept = {grant for label in sharing(layout, self.label) for grant in layout.pool_grants.get(label, ())}
            none = tuple(grant._replace(access=Access.NONE) for grant in self.grants if grant not in kept)
            if none:
                driver.mem_pool_set_access(layout.memory_pools[self.label], none)
            del layout.pool_grants[self.label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        for location, access in self.grants:
            found = Access(driver.mem_pool_get_access(layout.memory_pools[self.label], location))
            yield Finding("pool access", f"{self.label} for {location}", access.word, found.word, self.path)

    def describe(self) -> StepDescription:
        note = ", ".join(f"{location} {access.word}" for location, access in self.grants)
        return StepDescription(self.label, f"gpu{self.device}", note=note)


@dataclass(frozen=True, slots=True)
class SetImportedAccess(SetPoolAccess):
    """Set access to an imported pool, which has that of its own location only, whatever its exporter set (fact 82).

    A pool that a process imports from itself keeps its other access.
    """

    phase = Phase.IMPORT


@dataclass(frozen=True, slots=True)
class ImportPool(OpenPool, ImportStep):
    """Import a pool, of which single allocations are imported next; the descriptor may be closed at once (fact 82)."""

    source: HandleReference

    verb = "import pool"
    call = "cuMemPoolImportFromShareableHandle"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint("what was received is not a pool (fact 82)", "see what the exporter sends"),
        "UNKNOWN": ErrorHint("what was received is not a pool (fact 82)", "see what the exporter sends"),
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = self.source.fetch_descriptor(layout.handle_source)
        pool = driver.mem_pool_import_from_shareable_handle(fd, HandleType.FD)
        layout.pool_imports[pool] = layout.pool_imports.get(pool, 0) + 1
        layout.memory_pools[self.label] = pool

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Destroy the pool once for each import of it, with the last of its labels.

        Two exports of one pool give the same handle, which cannot be destroyed while anything of it is used (fact 82).
        """
        if self.label not in layout.memory_pools:
            return
        pool = layout.memory_pools[self.label]
        if not sharing(layout, self.label):
            while layout.pool_imports[pool]:
                driver.mem_pool_destroy(pool)
                layout.pool_imports[pool] -= 1
            del layout.pool_imports[pool]
        del layout.memory_pools[self.label]

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, like=self.source.holder, note="fd")


@dataclass(frozen=True, slots=True)
class AliasPool(Alias):
    """Use a pool of this process as one that it imports from itself, to set the access that the import declares."""

    verb = "alias pool"
    call = "cuMemPoolImportFromShareableHandle"
    noun = "pool"

    def objects(self, layout: Layout) -> dict[str, Any]:
        return layout.memory_pools

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.own, like=self.own.partition(".")[0], note=OWN)


def sharing(layout: Layout, label: str) -> list[str]:
    """Other labels of the same pool: of further imports, and of an own pool that is imported."""
    pool = layout.memory_pools[label]
    return [other for other, handle in layout.memory_pools.items() if handle == pool and other != label]


def pool_name(label: str) -> str:
    """Leak name of a pool."""
    return f"pool {label}"
