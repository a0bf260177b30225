"""Pools of elastic chunks: steps that keep them while the layout exists, and the chunks that this process creates."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from memtopo.driver.batches import create_each, release_each
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Properties
from memtopo.kinds.chunks.steps import RETAINED, CreateChunk
from memtopo.kinds.elastic import ELASTIC_CONTENTS, ELASTIC_POOLS, ChunkSource, ElasticChunk, ElasticChunkPool
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout
from memtopo.kinds.step import Finding, Phase, Step, StepDescription


class Created:
    """Chunks that this process creates."""

    def create(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, count: int
    ) -> tuple[Sequence[ElasticChunk], DriverError | None]:
        chunks = pool.add(count)
        handles, error = create_each(driver, pool.size, pool.properties_of(chunks))
        layout.chunks.update(zip([chunk.label for chunk in chunks], handles, strict=False))
        for chunk in reversed(chunks[len(handles) :]):
            pool.remove(chunk)
        return chunks[: len(handles)], error

    def release(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, chunks: Sequence[ElasticChunk]
    ) -> tuple[int, DriverError | None]:
        handles, retained = layout.chunks, layout.of(RETAINED)
        for each in [each for each in chunks if each.label in retained] if retained else ():  # by a check that failed
            try:
                driver.mem_release(retained[each.label])
            except DriverError as failure:
                return 0, failure
            del retained[each.label]
        released, error = release_each(driver, [handles[each.label] for each in chunks])
        for each in chunks[:released]:
            del handles[each.label]
            pool.remove(each)
        return released, error


@dataclass(frozen=True, slots=True)
class KeepPool(Step):
    """Keep elastic chunks, `kept` of which other steps create; a program creates more, up to `limit`."""

    name: str
    size: int
    properties: tuple[Properties, ...]
    granule: int
    kept: int
    limit: int

    chunk_source: ClassVar[ChunkSource] = Created()

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
        pool = ElasticChunkPool(
            self.name, self.size, self.properties, self.granule, self.kept, self.limit, self.chunk_source
        )
        pool.free += reversed(pool.add(self.kept))
        layout.of(ELASTIC_POOLS)[self.name] = pool

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Release what a program has created; raises the first error after all were tried."""
        if self.name not in layout.of(ELASTIC_POOLS):
            return
        pool, errors = layout.of(ELASTIC_POOLS)[self.name], []
        for chunk in [chunk for number, chunk in pool.created.items() if number >= self.kept]:
            _, error = pool.source.release(driver, layout, pool, [chunk])
            errors += [error] if error else []
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
        _, error = pool.source.release(driver, layout, pool, pool.releasable[:surplus])
        pool.drop_removed()
        if error:
            raise error
        pool.limit = self.limit

    def describe(self) -> StepDescription:
        return StepDescription(self.name, "", note=f"up to {self.limit:,}")


def limit_changes(difference: StepDifference) -> Iterator[LimitPool]:
    """Limits that differ of pools that stay."""
    for effect, step in difference.after.items():
        old = difference.kept.get(effect)
        if isinstance(step, KeepPool) and isinstance(old, KeepPool) and old.limit != step.limit:
            yield LimitPool(step.path, step.name, step.limit)
