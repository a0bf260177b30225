"""Pools of elastic chunks: the steps that keep them while the layout exists, and the sources of their chunks.

A process creates the chunks of its own pools, and may lend them; it borrows those of a holder's pool.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HandleType, Properties
from memtopo.driver.wrappers import call_each, refusal
from memtopo.kinds.chunks.steps import LENT, RETAINED, CreateChunk, ImportChunk
from memtopo.kinds.elastic import ELASTIC_CONTENTS, ELASTIC_POOLS, ChunkSource, ElasticChunk, ElasticChunkPool
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout, LentBlock
from memtopo.kinds.step import Finding, HandleReference, Phase, Step, StepDescription, Undoing


def release_handles(
    driver: Driver, layout: Layout, pool: ElasticChunkPool, chunks: Sequence[ElasticChunk]
) -> tuple[int, DriverError | None]:
    """Release the handles of chunks, and remove them from their pool, until a call fails."""
    handles, retained = layout.chunks, layout.of(RETAINED)
    left = [chunk for chunk in chunks if chunk.label in retained] if retained else []  # by a check that failed
    for chunk in left:
        try:
            driver.mem_release(retained[chunk.label])
        except DriverError as failure:
            return 0, failure
        del retained[chunk.label]
    released, error = call_each(driver, "mem_release", [(handles[chunk.label],) for chunk in chunks])
    for chunk in chunks[: len(released)]:
        del handles[chunk.label]
        pool.remove(chunk)
    return len(released), refusal(error)


class Created:
    """Chunks that this process creates."""

    def create(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, count: int
    ) -> tuple[Sequence[ElasticChunk], DriverError | None]:
        chunks = pool.add(count)
        handles, error = call_each(driver, "mem_create", [(pool.size, own) for own in pool.properties_of(chunks)])
        layout.chunks.update(zip([chunk.label for chunk in chunks], handles, strict=False))
        for chunk in reversed(chunks[len(handles) :]):
            pool.remove(chunk)
        return chunks[: len(handles)], refusal(error)

    release = staticmethod(release_handles)


class Borrowed(Struct, frozen=True):
    """Chunks that a holder lends, which this process imports."""

    reference: HandleReference
    kind: HandleType

    def create(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, count: int
    ) -> tuple[Sequence[ElasticChunk], MemtopoError | None]:
        lend = partial(layout.handle_source.lend, self.reference.holder, self.reference.export)
        return self._imported(driver, layout, pool, count, lambda made: lend(count - made))

    def adopt(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, count: int, key: str, epoch: int | None
    ) -> tuple[Sequence[ElasticChunk], MemtopoError | None]:
        """Import the chunks that are sealed under a key, as `create` does; of an epoch, if it is given."""
        lend = partial(layout.handle_source.lend, self.reference.holder, self.reference.export, key=key, epoch=epoch)
        return self._imported(driver, layout, pool, count, lambda made: lend(count - made, first=made))

    def sealed(self, layout: Layout, key: str, epoch: int | None) -> int:
        """Return the number of chunks that are sealed under a key. Raises `MemtopoError` if they cannot be adopted."""
        _, total = layout.handle_source.lend(self.reference.holder, self.reference.export, 0, key=key, epoch=epoch)
        return total

    def seal(self, layout: Layout, chunks: Sequence[ElasticChunk], key: str | None) -> None:
        """Have the holder keep the bytes of chunks under a key; with None, no longer. Raises `MemtopoError`."""
        layout.handle_source.seal(self.reference.holder, self.reference.export, _epochs(chunks), key)

    def release(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, chunks: Sequence[ElasticChunk]
    ) -> tuple[int, MemtopoError | None]:
        """Release chunks, and give them back, unless that follows from the end of the connection."""
        released, error = release_handles(driver, layout, pool, chunks)
        if released and not layout.ending:
            failure = self._give_back(layout, _epochs(chunks[:released]))
            return released, error or failure
        return released, error

    def _imported(
        self,
        driver: Driver,
        layout: Layout,
        pool: ElasticChunkPool,
        count: int,
        lend: Callable[[int], tuple[Sequence[LentBlock], int]],
    ) -> tuple[Sequence[ElasticChunk], MemtopoError | None]:
        """Import `count` chunks, of which `lend` returns the next ones, given how many there are."""
        made: list[ElasticChunk] = []
        left: dict[int, int] = {}
        try:
            while len(made) < count:
                blocks, _ = lend(len(made))
                left = {number: epoch for number, epoch, _ in blocks}
                for block in blocks:
                    made.append(self._import(driver, layout, pool, block))
                    del left[block.number]
        except MemtopoError as error:
            layout.handle_source.settle()
            self._give_back(layout, left)
            return made, error
        layout.handle_source.settle()
        return made, None

    def _import(self, driver: Driver, layout: Layout, pool: ElasticChunkPool, block: LentBlock) -> ElasticChunk:
        if block.number in pool.created:
            raise MemtopoError(f"{self.reference.text} lends chunk {block.number}, which this process has already")
        imported = driver.mem_import_from_shareable_handle(block.handle.shared, self.kind)
        chunk = pool.add_lent(block.number, block.epoch)
        layout.chunks[chunk.label] = imported
        return chunk

    def _give_back(self, layout: Layout, blocks: Mapping[int, int]) -> MemtopoError | None:
        try:
            if blocks:
                layout.handle_source.give_back(self.reference.holder, self.reference.export, blocks)
        except MemtopoError as error:
            return error
        return None


def release_all(
    driver: Driver, layout: Layout, pool: ElasticChunkPool, chunks: Sequence[ElasticChunk]
) -> list[MemtopoError]:
    """Release chunks that are not mapped, all that can be; return the errors of the others."""
    errors: list[MemtopoError] = []
    while chunks:
        released, error = pool.source.release(driver, layout, pool, chunks)
        errors += [error] if error else []
        chunks = chunks[released + 1 :]  # after the one that was refused
    return errors


def _epochs(chunks: Sequence[ElasticChunk]) -> Mapping[int, int]:
    return {chunk.number: chunk.epoch for chunk in chunks}


class KeepPool(Step, frozen=True):
    """Keep elastic chunks, `kept` of which other steps create; a program creates more, up to `limit`."""

    name: str
    size: int
    properties: tuple[Properties, ...]
    granule: int
    kept: int
    limit: int

    phase = Phase.CREATE
    verb = "chunk pool"
    call = "cuMemCreate"
    undoing = Undoing("cuMemRelease", "release")
    leaks_as = "chunk"
    provided = "elastic chunks", "name"
    calls = 0

    @property
    def chunk_source(self) -> ChunkSource:
        """Source of the chunks."""
        return Created()

    @property
    def needs(self) -> tuple[Hashable, ...]:
        """Chunks that other steps create: none is released while it is lent."""
        return tuple(("chunk", f"{self.name}.{number}") for number in range(self.kept))

    @property
    def effect(self) -> Hashable:
        """Pool without its limit, which can change while its chunks stay."""
        return self.verb, self.name, self.size, self.properties, self.granule, self.kept

    def do(self, driver: Driver, layout: Layout) -> None:
        pool = ElasticChunkPool(
            self.name, self.size, self.properties, self.granule, self.kept, self.limit, self.chunk_source
        )
        for chunk in reversed(pool.add(self.kept)):
            effect, export = layout.of(LENT).get(chunk.label, (None, ""))
            if effect == self.effect:
                pool.lent[chunk.number] = export
            else:
                pool.free.append(chunk)
        layout.of(ELASTIC_POOLS)[self.name] = pool

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Release what a program has created, and note what is lent; raises the first error after all were tried."""
        if self.name not in layout.of(ELASTIC_POOLS):
            return
        pool = layout.of(ELASTIC_POOLS)[self.name]
        created = [chunk for number, chunk in pool.created.items() if number >= self.kept]
        errors = release_all(driver, layout, pool, created)
        pool.drop_removed()
        if errors:
            raise errors[0]
        lent = {pool.created[number].label: (self.effect, export) for number, export in pool.lent.items()}
        layout.of(LENT).update(lent)
        del layout.of(ELASTIC_POOLS)[self.name]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        pool = layout.of(ELASTIC_POOLS)[self.name]
        for number, chunk in list(pool.created.items()):
            if number >= self.kept:
                yield from self._checked(chunk, pool.properties_of([chunk])[0]).check(driver, layout)

    def _checked(self, chunk: ElasticChunk, properties: Properties) -> Step:
        """Return the step that would have made a chunk."""
        return CreateChunk(self.path, chunk.label, self.size, properties)

    def describe(self) -> StepDescription:
        where = ", ".join(dict.fromkeys(str(each.location) for each in self.properties))
        return StepDescription(self.name, where, 0, self.name, self._number)

    @property
    def _number(self) -> str:
        return f"{self.kept:,} now, up to {self.limit:,}"


class BorrowPool(KeepPool, frozen=True):
    """Keep elastic chunks that a holder lends, none of which are there at first."""

    reference: HandleReference
    kind: HandleType

    phase = Phase.IMPORT
    verb = "borrow"
    call = "cuMemImportFromShareableHandle"

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("holder", self.reference.holder),)

    @property
    def chunk_source(self) -> ChunkSource:
        return Borrowed(self.reference, self.kind)

    def _checked(self, chunk: ElasticChunk, properties: Properties) -> Step:
        return ImportChunk(self.path, chunk.label, self.size, properties.location, self.kind, self.reference)

    def describe(self) -> StepDescription:
        return StepDescription(self.name, self.reference.text, 0, self.reference.holder, self._number)


class LimitPool(Step, frozen=True):
    """Change the largest number of elastic chunks. If more exist, chunks that are not mapped are released."""

    name: str
    limit: int

    phase = Phase.CREATE
    verb = "limit"
    call = "cuMemCreate"
    calls = 0
    effect = None  # the limit belongs to the pool

    def refusal(self, layout: Layout, undone: Container[Hashable]) -> str | None:
        """Return why a layout does not admit the limit in a change that undoes some resources; None if it does."""
        contents = (
            each for each in layout.of(ELASTIC_CONTENTS).values() if ("elastic range", each.label) not in undone
        )
        mapped = {chunk.number for each in contents for chunk in each.at.values() if chunk.pool == self.name}
        pool = layout.of(ELASTIC_POOLS)[self.name]
        staying = mapped.union(pool.lent, range(pool.kept))
        if len(staying) <= self.limit:
            return None
        used = f"{len(mapped):,} are mapped" + f" and {len(pool.lent):,} are lent" * bool(pool.lent)
        if least := len(staying) - len(mapped.union(pool.lent)):
            used += f", {least:,} of min are free"
        return f"chunks {self.name!r}: {used}, and max is {self.limit:,}"

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


class NoneLeft(MemtopoError):
    """Pool that has not as many chunks as are to be lent."""


def lend(driver: Driver, layout: Layout, name: str, count: int, export: str) -> Sequence[int]:
    """Take chunks of a pool for another process of an export, and return their numbers; missing ones are created.

    Raises `NoneLeft` and `DriverError` with the pool as it was, but for chunks that cannot be released again, which are
    free; `KeyError` if there is no such pool now.
    """
    pool = layout.of(ELASTIC_POOLS)[name]
    left = len(pool.free) + max(pool.limit - len(pool.created), 0)
    if count > left:
        raise NoneLeft(f"{count:,} chunks {name!r} are requested, and {left:,} of {pool.limit:,} are left")
    found = pool.free[len(pool.free) - min(count, len(pool.free)) :]
    created, error = pool.source.create(driver, layout, pool, count - len(found))
    if error:
        pool.free += created
        pool.source.release(driver, layout, pool, created)
        pool.drop_removed()
        raise error
    del pool.free[len(pool.free) - len(found) :]
    chunks = [*reversed(found), *created]
    numbers = [chunk.number for chunk in chunks]
    pool.lent.update(dict.fromkeys(numbers, export))
    return numbers


def take_back(driver: Driver, layout: Layout, name: str, numbers: Sequence[int], export: str) -> None:
    """Have chunks of a pool again that an export lent, which releases chunks that were not created with the layout.

    Raises `DriverError` after the first one that cannot be released; the others stay in the pool.
    """
    pool = layout.of(ELASTIC_POOLS)[name]
    chunks = [pool.created[number] for number in numbers if pool.lent.get(number) == export]
    for chunk in chunks:
        del pool.lent[chunk.number]
    pool.free += reversed(chunks)
    _, error = pool.source.release(driver, layout, pool, [chunk for chunk in chunks if chunk.number >= pool.kept])
    pool.drop_removed()
    if error:
        raise error
