"""Steps of chunks."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from memtopo.driver.batches import properties_each, release_each
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HandleType, Location, LocationKind, Properties
from memtopo.kinds.elastic import ELASTIC_CONTENTS, ELASTIC_POOLS, ElasticChunk, ElasticChunkPool
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout, LayoutTable
from memtopo.kinds.objects import ImportStep, TryExport
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    PROBE_ADVICE,
    CheckedSteps,
    ErrorHint,
    Finding,
    HandleReference,
    Phase,
    Step,
    StepDescription,
    first_difference,
)

_HOST = LocationKind.HOST
"""Looked up once: a member of an enumeration takes longer to find than the rest of what is done for a chunk."""


RETAINED: LayoutTable[str, int] = LayoutTable("retained chunks")
"""References that a check has retained and not yet released, by the label of the expected chunk."""


@dataclass(frozen=True, slots=True)
class ChunkStep(Step):
    """Base of the steps that have a handle of an object of `size` bytes under its label."""

    label: str
    size: int

    noun: ClassVar[str] = "chunk"
    leak: ClassVar[str] = "chunk"
    """Noun of the object in messages about leaks."""
    undo_verb = "release"
    undo_call = "cuMemRelease"

    @property
    def provides(self) -> Hashable:
        return (self.noun, self.label)

    def undo(self, driver: Driver, layout: Layout) -> None:
        release_chunk(driver, layout, self.label)

    def leak_name(self) -> str:
        return f"{self.leak} {self.label}"


@dataclass(frozen=True, slots=True)
class CreateChunk(ChunkStep):
    """Create a chunk of `size` bytes with exactly these properties (fact 3)."""

    properties: Properties

    phase = Phase.CREATE
    verb = "create"
    call = "cuMemCreate"
    hints: ClassVar = {
        "NOT_PERMITTED": ErrorHint(
            "a fabric handle needs an IMEX channel, also where it is advertised (fact 4)",
            f"use 'handles: [fd]', or have the administrator set up IMEX; {PROBE_ADVICE}",
        ),
        "INVALID_VALUE": ErrorHint(
            "size and properties must be ones that the device supports (facts 3, 6)", PROBE_ADVICE
        ),
        "INVALID_DEVICE": ErrorHint("the device is not visible to this process (fact 3)", "see CUDA_VISIBLE_DEVICES"),
    }

    @property
    def allocates(self) -> tuple[Location, int]:
        return self.properties.location, self.size

    def do(self, driver: Driver, layout: Layout) -> None:
        layout.chunks[self.label] = driver.mem_create(self.size, self.properties)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        observed = driver.mem_get_allocation_properties_from_handle(layout.chunks[self.label])
        yield Finding("properties", self.label, _as_reported(self.properties), observed, self.path)

    @classmethod
    def check_each(cls, steps: Sequence[CreateChunk], driver: Driver, layout: Layout) -> CheckedSteps:
        found, error = properties_each(driver, [layout.chunks[each.label] for each in steps])
        number = first_difference([_as_reported(each.properties) for each in steps], found)
        findings = [Finding.equal("properties", number)] if number else []
        return CheckedSteps(number, findings, error if number == len(found) else None)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, *_described(self.properties, self.size))


@dataclass(frozen=True, slots=True)
class KeepPool(Step):
    """Keep elastic chunks, `kept` of which other steps create; a program creates more, up to `limit`."""

    name: str
    size: int
    properties: tuple[Properties, ...]
    granule: int
    kept: int
    limit: int

    phase = Phase.CREATE
    verb = "keep"
    call = "cuMemCreate"
    undo_verb = "release"
    undo_call = "cuMemRelease"
    provided = "elastic chunks", "name"

    @property
    def calls(self) -> int:
        return 0

    @property
    def effect(self) -> Hashable:
        """Pool without its limit, which can change while its chunks stay."""
        return self.verb, self.name, self.size, self.properties, self.granule, self.kept

    def do(self, driver: Driver, layout: Layout) -> None:
        pool = ElasticChunkPool(self.name, self.size, self.properties, self.granule, self.kept, self.limit)
        pool.free += reversed(pool.add(self.kept))
        layout.of(ELASTIC_POOLS)[self.name] = pool

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Release what a program has created; raises the first error after all were tried."""
        if self.name not in layout.of(ELASTIC_POOLS):
            return
        pool, errors = layout.of(ELASTIC_POOLS)[self.name], []
        for chunk in [chunk for number, chunk in pool.created.items() if number >= self.kept]:
            try:
                release_elastic(driver, layout, pool, chunk)
            except DriverError as error:
                errors.append(error)
        pool.drop_removed()
        if errors:
            raise errors[0]
        del layout.of(ELASTIC_POOLS)[self.name]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        pool = layout.of(ELASTIC_POOLS)[self.name]
        for number, chunk in list(pool.created.items()):
            if number >= self.kept:
                yield from CreateChunk(self.path, chunk.label, self.size, pool.properties_of([chunk])[0]).check(
                    driver, layout
                )

    def describe(self) -> StepDescription:
        where = ", ".join(dict.fromkeys(str(each.location) for each in self.properties))
        return StepDescription(self.name, where, 0, self.name, f"up to {self.limit:,}")

    def leak_name(self) -> str:
        return f"chunk {self.name}"


@dataclass(frozen=True, slots=True)
class LimitPool(Step):
    """Change the largest number of elastic chunks. If more exist, those that are not mapped are released."""

    name: str
    limit: int

    phase = Phase.CREATE
    verb = "limit"
    call = "cuMemCreate"

    @property
    def calls(self) -> int:
        return 0

    @property
    def effect(self) -> None:
        """None: the limit belongs to the pool."""

    def refusal(self, layout: Layout, undone: Container[Hashable]) -> str | None:
        """Return why a layout does not admit the limit in a change that undoes some resources; None if it does."""
        contents = (
            each for each in layout.of(ELASTIC_CONTENTS).values() if ("elastic range", each.label) not in undone
        )
        mapped = sum(chunk.pool == self.name for content in contents for chunk in content.at.values())
        return (
            f"chunks {self.name!r}: {mapped:,} are mapped, and max is {self.limit:,}" if mapped > self.limit else None
        )

    def do(self, driver: Driver, layout: Layout) -> None:
        pool = layout.of(ELASTIC_POOLS)[self.name]
        surplus = max(len(pool.created) - self.limit, 0)
        try:
            for chunk in pool.releasable[:surplus]:
                release_elastic(driver, layout, pool, chunk)
        finally:
            pool.drop_removed()
        pool.limit = self.limit

    def describe(self) -> StepDescription:
        return StepDescription(self.name, "", note=f"up to {self.limit:,}")


def limit_changes(difference: StepDifference) -> Iterator[LimitPool]:
    """Limits that differ of pools that stay."""
    for effect, step in difference.after.items():
        old = difference.kept.get(effect)
        if isinstance(step, KeepPool) and isinstance(old, KeepPool) and old.limit != step.limit:
            yield LimitPool(step.path, step.name, step.limit)


@dataclass(frozen=True, slots=True)
class ImportChunk(ChunkStep, ImportStep):
    """Request one handle and import it; `location` is the location that the driver reports here (fact 43).

    The imported handle has its own reference, so the handle source may close the descriptor afterwards.
    """

    location: Location
    kind: HandleType
    source: HandleReference

    leak = "imported chunk"
    verb = "import"
    call = "cuMemImportFromShareableHandle"
    hints: ClassVar = {
        "UNKNOWN": ErrorHint(
            "what was received is not a handle of this driver (fact 27)", "see what the exporter sends"
        )
    }

    def do(self, driver: Driver, layout: Layout) -> None:
        handle = self.source.fetch(layout.handle_source)
        layout.chunks[self.label] = driver.mem_import_from_shareable_handle(handle.shared, self.kind)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        properties = driver.mem_get_allocation_properties_from_handle(layout.chunks[self.label])
        observed = Properties(properties.location, properties.handles)
        # What the driver reports of memory of another node is not known (fact 88).
        location = properties.location if self.location.node else self.location
        yield Finding("imported", self.label, Properties(location), observed, self.path)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, self.size, self.source.holder, ", ".join(self.kind.words))


@dataclass(frozen=True, slots=True)
class TryExportChunk(TryExport):
    """Export a chunk as a test."""

    verb = "export"
    call = "cuMemExportToShareableHandle"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "the chunk was created without that handle type, or is itself imported (fact 26)", DEFECT_ADVICE
        )
    }


def release_chunk(driver: Driver, layout: Layout, label: str) -> None:
    """Release the reference to a chunk, after a reference that a failed check has not released."""
    if label in layout.of(RETAINED):
        driver.mem_release(layout.of(RETAINED)[label])
        del layout.of(RETAINED)[label]
    chunks = layout.chunks
    if label in chunks:
        driver.mem_release(chunks[label])
        del chunks[label]


def release_elastic(driver: Driver, layout: Layout, pool: ElasticChunkPool, chunk: ElasticChunk) -> None:
    """Release a chunk that is not mapped, and remove it from its pool. Raises `DriverError`; then it stays there."""
    release_chunk(driver, layout, chunk.label)
    pool.remove(chunk)


def release_batch(
    driver: Driver, layout: Layout, pool: ElasticChunkPool, batch: Sequence[ElasticChunk]
) -> tuple[int, DriverError | None]:
    """Release chunks that are not mapped, in order, until a call fails; return how many, and the error."""
    chunks, retained = layout.chunks, layout.of(RETAINED)
    for each in [each for each in batch if each.label in retained] if retained else ():  # by a check that failed
        try:
            driver.mem_release(retained[each.label])
        except DriverError as failure:
            return 0, failure
        del retained[each.label]
    released, error = release_each(driver, [chunks[each.label] for each in batch])
    for each in batch[:released]:
        del chunks[each.label]
        pool.remove(each)
    return released, error


def _as_reported(properties: Properties) -> Properties:
    """Properties as the driver reports them: HOST memory has the location of NUMA node 0 (fact 6)."""
    if properties.location.kind is _HOST:
        return properties._replace(location=Location(LocationKind.HOST_NUMA, 0))
    return properties


@lru_cache(maxsize=64)
def _described(properties: Properties, size: int) -> tuple[str, int, None, str]:
    """Location, bytes and note of chunks in a plan, which are the same for thousands."""
    return str(properties.location), size, None, ", ".join(properties.words)
