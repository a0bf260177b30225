"""Changes of elastic ranges while the layout exists: batches of mappings, all or nothing, and their pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from memtopo.kinds.chunks.steps import release_chunk
from memtopo.kinds.elastic import ElasticChunk, ElasticContent, Mapped, Pool, runs
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.ranges.elastic_steps import grant, map_chunks, restore, unmap_run
from memtopo.run.elastic_requests import (
    MapRequest,
    Refused,
    UnmapRequest,
    leaving,
    offset_of,
    offsets,
    require_fit,
    require_free,
    require_room,
)


class Failed(MemtopoError):
    """Driver call that failed; the message says what is as it was before."""

    exit_code = 4


def change_range(
    driver: Driver,
    layout: Layout,
    label: str,
    maps: Sequence[MapRequest],
    unmaps: Sequence[UnmapRequest],
    *,
    wait: bool = True,
) -> list[str]:
    """Unmap and map chunks of an elastic range, all or nothing; return the labels of the chunks mapped, in order.

    What is unmapped may be mapped again by the same batch. The driver calls are in the cheapest order: create, unmap,
    map, grant, release, and one call unmaps, or grants access to, each run of adjacent chunks. With `wait`, the work of
    all GPUs is awaited before anything is unmapped (fact 18). Raises `Refused` or `Failed`.
    """
    content = layout.elastic[label]
    if content.broken:
        raise Refused(f"range {label!r} can only be taken down: {content.broken}")
    batch = _Batch(driver, layout, content, maps, unmaps)
    batch.make(wait=wait)
    for name, chunks in batch.released.items():
        release(driver, layout, name, chunks)
    return batch.labels


def create(driver: Driver, layout: Layout, name: str, count: int) -> None:
    """Create chunks of a pool without mapping them, all or none. Raises `Refused` or `Failed`."""
    pool = layout.pools[name]
    if count > pool.limit - len(pool.created):
        left = pool.limit - len(pool.created)
        message = f"chunks {name!r}: {count:,} more are requested, and {left:,} of {pool.limit:,} do not exist yet"
        raise Refused(message, hint="map those that are not mapped, or increase 'max' in the spec")
    before = len(pool.free)
    try:
        for _ in range(count):
            pool.free.append(_create(driver, layout, pool))
    except DriverError as error:
        release(driver, layout, name, pool.free[before:])
        raise Failed(f"chunks {name!r}: {error}; they are as before", hint=_hint(error)) from error


def release(driver: Driver, layout: Layout, name: str, chunks: Iterable[ElasticChunk]) -> int:
    """Release chunks of a pool that are not mapped, without those that were created with the layout; return how many.

    Raises `Failed` after the first error; the others stay in the pool.
    """
    pool, released = layout.pools[name], 0
    try:
        for chunk in chunks:
            if chunk.number >= pool.kept:
                _release(driver, layout, pool, chunk)
                released += 1
    except DriverError as error:
        message = f"chunks {name!r}: {error}; {released:,} were released, and the others stay, without being mapped"
        raise Failed(message) from error
    finally:
        pool.free = [chunk for chunk in pool.free if chunk.number in pool.created]
    return released


def _create(driver: Driver, layout: Layout, pool: Pool) -> ElasticChunk:
    chunk = pool.add()
    try:
        layout.chunks[chunk.label] = driver.mem_create(pool.size, pool.properties_of(chunk))
    except BaseException:
        pool.remove(chunk)
        raise
    return chunk


def _release(driver: Driver, layout: Layout, pool: Pool, chunk: ElasticChunk) -> None:
    release_chunk(driver, layout, chunk.label)
    pool.remove(chunk)


class _Batch:
    """One change of a range: the mappings that go and come, and those that a failure has to bring back."""

    def __init__(
        self,
        driver: Driver,
        layout: Layout,
        content: ElasticContent,
        maps: Sequence[MapRequest],
        unmaps: Sequence[UnmapRequest],
    ) -> None:
        """Raises `Refused` if the requests do not fit the range, each other or the pools."""
        self._driver, self._layout, self._content, self._maps = driver, layout, content, maps
        self._leaving = leaving(content, unmaps)
        for each in maps:
            require_fit(content, each, layout.pools)
        require_free(content, maps, self._leaving, layout.pools)
        self._unused = _by_pool(self._leaving)
        needed = {name: sum(each.count for each in maps if each.pool == name) for name in {each.pool for each in maps}}
        for name, count in needed.items():
            require_room(layout.pools[name], count, len(self._unused.get(name, ())))
        self._needed = needed
        self._released = {offset for each in unmaps if each.release for offset in offsets(content, each)}
        self._coming: list[Mapped] = []
        self._zeros: list[Mapped] = []
        self._gone: list[Mapped] = []
        self._created: list[ElasticChunk] = []
        self._reused: set[ElasticChunk] = set()
        self._mapping = False
        self.labels: list[str] = []

    @property
    def released(self) -> Mapping[str, list[ElasticChunk]]:
        """Chunks to release after the change, by pool."""
        if not self._released:
            return {}
        chosen = [item for item in self._leaving if item[0] in self._released and item[1] not in self._reused]
        return _by_pool(chosen)

    def make(self, *, wait: bool) -> None:
        """Make the driver calls. Raises `Failed` after everything was brought back."""
        content = self._content
        try:
            taken = {name: self._take(self._layout.pools[name], count) for name, count in self._needed.items()}
            self._place(taken)
            out = self._out()
            if out and wait:
                _await_gpus(self._driver, self._layout)
            for run in runs(out):
                unmap_run(self._driver, content, run)
                self._gone += run
            self._mapping = True
            map_chunks(self._driver, self._layout, content, self._coming)
            map_chunks(self._driver, self._layout, content, self._zeros)
            grant(self._driver, content, self._coming)
            grant(self._driver, content, self._zeros, zero=True)
        except DriverError as error:
            self._roll_back(error)
            raise Failed(f"range {content.label!r}: {error}; it is as before", hint=_hint(error)) from error
        content.replace(out, sorted([*self._coming, *self._zeros]) if self._zeros else self._coming)
        self._commit()

    def _take(self, pool: Pool, count: int) -> list[ElasticChunk]:
        """Chunks of a pool that are not mapped, then those that this batch unmaps, then new ones."""
        found = pool.free[: -count - 1 : -1]
        if len(found) < count:
            reused = self._unused.get(pool.name, [])[: count - len(found)]
            self._reused.update(reused)
            found += reused
        while len(found) < count:
            chunk = _create(self._driver, self._layout, pool)
            self._created.append(chunk)
            found.append(chunk)
        return found

    def _place(self, taken: dict[str, list[ElasticChunk]]) -> None:
        used = dict.fromkeys(taken, 0)
        for each in self._maps:
            first = used[each.pool]
            chunks = taken[each.pool][first : first + each.count]
            used[each.pool] += each.count
            size = self._layout.pools[each.pool].size
            self._coming += zip(range(each.offset, each.offset + each.count * size, size), chunks, strict=True)
            self.labels += [chunk.label for chunk in chunks]
        if len(self._maps) > 1:
            self._coming.sort(key=offset_of)

    def _out(self) -> list[Mapped]:
        """Mappings that go, in order; the zero chunks behind what comes are among them. Sets those that come."""
        zero = self._content.zero
        if zero is None:
            return self._leaving
        covered = _granules(self._coming, zero.size)
        new = set(covered)
        self._zeros = [(at, zero) for at in _granules(self._leaving, zero.size) if at not in new]
        behind = [(at, zero) for at in covered if self._content.at.get(at) is zero]
        return sorted([*self._leaving, *behind], key=offset_of) if self._leaving else behind

    def _commit(self) -> None:
        for name in {*self._needed, *self._unused}:
            pool = self._layout.pools[name]
            before = min(self._needed.get(name, 0), len(pool.free))
            del pool.free[len(pool.free) - before :]
            pool.free += [chunk for chunk in self._unused.get(name, ()) if chunk not in self._reused]

    def _roll_back(self, failure: DriverError) -> None:
        """Unmap what came, map what went, and release what was created. Raises `Failed` if that is impossible."""
        driver, layout, content = self._driver, self._layout, self._content
        try:
            if self._mapping:
                came = [item for item in [*self._coming, *self._zeros] if content.at.get(item[0]) is item[1]]
                for run in runs(sorted(came, key=offset_of)):
                    unmap_run(driver, content, run)
            if (error := restore(driver, layout, content, self._gone, failure)) is not None:
                raise error
            for chunk in self._created:
                _release(driver, layout, layout.pools[chunk.pool], chunk)
        except DriverError as error:
            content.broken = content.broken or f"{failure}, and then {error} while the range was brought back"
            _rebuild(layout)
            raise Failed(f"range {content.label!r} can only be taken down: {content.broken}") from error


def _rebuild(layout: Layout) -> None:
    """Bring the indices of all ranges, and the lists of unmapped chunks, up to date with what is mapped."""
    mapped: set[ElasticChunk] = set()
    for content in layout.elastic.values():
        content.rebuild()
        mapped.update(content.at.values())
    for pool in layout.pools.values():
        pool.free = [chunk for chunk in pool.created.values() if chunk not in mapped]


def _await_gpus(driver: Driver, layout: Layout) -> None:
    """Wait for the work of all GPUs, without those whose stream waits for a producer (fact 58)."""
    for device, context in layout.contexts.items():
        if device not in layout.waiting:
            with current(driver, context):
                driver.ctx_synchronize()


def _granules(mapped: Sequence[Mapped], unit: int) -> list[int]:
    """Offsets of the zero chunks that fill as many bytes as some mappings."""
    return [at for offset, chunk in mapped for at in range(offset, offset + chunk.size, unit)]


def _by_pool(mapped: Iterable[Mapped]) -> dict[str, list[ElasticChunk]]:
    found: dict[str, list[ElasticChunk]] = {}
    for _, chunk in mapped:
        found.setdefault(chunk.pool, []).append(chunk)
    return found


def _hint(error: DriverError) -> str | None:
    if error.name == "CUDA_ERROR_OUT_OF_MEMORY":
        return "release chunks that are not mapped by 'trim', or memory of other programs"
    return None
