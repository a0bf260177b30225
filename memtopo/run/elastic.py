"""Changes of elastic ranges while the layout exists: batches of mappings, all or nothing, and their pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NoReturn

from msgspec import Struct

from memtopo.common.errors import Exit, Failed, MemtopoError
from memtopo.common.text import nearest
from memtopo.common.units import by_key, exact
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from memtopo.kinds.chunks.pools import Borrowed
from memtopo.kinds.elastic import (
    ELASTIC_CONTENTS,
    ELASTIC_POOLS,
    ElasticChunk,
    ElasticChunkPool,
    ElasticContent,
    Mapped,
    runs,
)
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.ranges.elastic_steps import grant, map_chunks, restore, unmap_run
from memtopo.kinds.resources import WAITING


class ElasticFailed(Failed):
    """Driver call that failed; the message says what is as it was before."""


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
    all GPUs is awaited before anything is unmapped (fact 18). Raises `ElasticRefused` or `ElasticFailed`.
    """
    content = layout.of(ELASTIC_CONTENTS)[label]
    if content.broken:
        raise ElasticRefused(f"range {label!r} can only be taken down: {content.broken}")
    batch = _Batch(driver, layout, content, maps, unmaps)
    batch.make(wait=wait)
    refusals: list[ElasticFailed] = []
    for name, chunks in batch.released.items():
        try:
            release(driver, layout, name, chunks)
        except ElasticFailed as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    return batch.labels


def seal(layout: Layout, label: str, request: UnmapRequest, key: str | None) -> int:
    """Have a holder keep the bytes of chunks that a range maps under a key, or no longer; return their latest epoch.

    Raises `ElasticRefused`, and `MemtopoError` of the holder.
    """
    content = layout.of(ELASTIC_CONTENTS)[label]
    chunks = [chunk for _, chunk in mapped_part(content, request)]
    names = {chunk.pool for chunk in chunks}
    if len(names) > 1:
        message = f"range {label!r}: chunks of {' and '.join(sorted(names))} are not sealed together"
        raise ElasticRefused(message, hint="seal the chunks of each separately")
    _borrowed(layout, names.pop()).seal(layout, chunks, key)
    return max(chunk.epoch for chunk in chunks)


def adopt(driver: Driver, layout: Layout, label: str, request: AdoptRequest) -> list[str]:
    """Map the chunks that are sealed under a key, all or nothing; return their labels, in the order of the seals.

    Raises as `change_range`, and `MemtopoError` of the holder.
    """
    content, pool = layout.of(ELASTIC_CONTENTS)[label], request.pool
    if pool not in content.pools:
        raise _unknown_pool(content, pool)
    count = _borrowed(layout, pool).sealed(layout, request.key, request.epoch)
    return change_range(driver, layout, label, [MapRequest(request.offset, pool, count, request)], [])


def _borrowed(layout: Layout, name: str) -> Borrowed:
    """Source of a pool whose chunks a holder lends. Raises `ElasticRefused` for another one."""
    source = layout.of(ELASTIC_POOLS)[name].source
    if not isinstance(source, Borrowed):
        message = f"chunks {name!r} belong to this layout, but only chunks lent by a holder can be sealed"
        raise ElasticRefused(message, hint="they keep their state until they are unmapped")
    return source


def create(driver: Driver, layout: Layout, name: str, count: int) -> None:
    """Create chunks of a pool without mapping them, all or none. Raises `ElasticRefused` or `ElasticFailed`."""
    pool = layout.of(ELASTIC_POOLS)[name]
    if count > pool.limit - len(pool.created):
        left = max(0, pool.limit - len(pool.created))
        message = f"chunks {name!r}: {count:,} more are requested, and {left:,} of {pool.limit:,} can still be created"
        raise ElasticRefused(message, hint="map chunks that are not mapped, or increase 'max' in the spec")
    created, error = pool.source.create(driver, layout, pool, count)
    pool.free += created
    if error:
        release(driver, layout, name, created)
        _fail(f"chunks {name!r}", error, "they are as before")


def release(driver: Driver, layout: Layout, name: str, chunks: Iterable[ElasticChunk]) -> int:
    """Release chunks of a pool that are not mapped, except chunks of the layout itself; return how many.

    Raises `ElasticFailed` after the first error; the others stay in the pool.
    """
    pool = layout.of(ELASTIC_POOLS)[name]
    chosen = [chunk for chunk in chunks if chunk.number >= pool.kept]
    released, error = pool.source.release(driver, layout, pool, chosen)
    pool.drop_removed()
    if error:
        after = f"{released:,} were released, and the others stay, without being mapped"
        _fail(f"chunks {name!r}", error, after)
    return released


class _Batch:
    """One change of a range: the mappings to undo and to make, and what a failure has to restore."""

    def __init__(
        self,
        driver: Driver,
        layout: Layout,
        content: ElasticContent,
        maps: Sequence[MapRequest],
        unmaps: Sequence[UnmapRequest],
    ) -> None:
        """Raises `ElasticRefused` if the requests do not fit the range, each other or the pools."""
        self._driver, self._layout, self._content, self._maps = driver, layout, content, maps
        self._to_unmap = mappings_to_unmap(content, unmaps)
        for each in maps:
            require_fit(content, each, layout.of(ELASTIC_POOLS))
        require_free(content, maps, self._to_unmap, layout.of(ELASTIC_POOLS))
        self._unused = _by_pool(content, self._to_unmap)
        self._needed: dict[str, int] = {}
        for each in maps:
            if each.adopts is None:
                self._needed[each.pool] = self._needed.get(each.pool, 0) + each.count
        for name, count in self._needed.items():
            require_chunks(layout.of(ELASTIC_POOLS)[name], count, len(self._unused.get(name, ())))
        released = [each for each in unmaps if each.release]
        whole = len(released) == len(unmaps)
        self._released = self._to_unmap if whole else [item for each in released for item in mapped_part(content, each)]
        self._to_map: list[Mapped] = []
        self._zeros: list[Mapped] = []
        self._unmapped: list[Mapped] = []
        self._created: list[ElasticChunk] = []
        self._reused: set[ElasticChunk] = set()
        self._mapping = False
        self.labels: list[str] = []

    @property
    def released(self) -> Mapping[str, Sequence[ElasticChunk]]:
        """Chunks to release after the change, by pool."""
        return _by_pool(self._content, [item for item in self._released if item[1] not in self._reused])

    def make(self, *, wait: bool) -> None:
        """Make the driver calls. Raises `ElasticFailed` after everything was brought back."""
        driver, layout, content = self._driver, self._layout, self._content
        try:
            self._place(
                {name: self._take(layout.of(ELASTIC_POOLS)[name], count) for name, count in self._needed.items()}
            )
            out = runs(self._out())
            if out and wait:
                for device, context in layout.contexts.items():  # a stream may wait for a producer (fact 58)
                    if device not in layout.of(WAITING):
                        with current(driver, context):
                            driver.ctx_synchronize()
            for run in out:
                unmap_run(driver, content, run)
                self._unmapped += run
            self._mapping = True
            map_chunks(driver, layout, content, self._to_map)
            map_chunks(driver, layout, content, self._zeros)
            # The chunks of one request are adjacent.
            coming = [self._to_map] if len(self._maps) == 1 else runs(self._to_map)
            zeros = runs(self._zeros)
            grant(driver, content, coming)
            grant(driver, content, zeros, zero=True)
        except MemtopoError as error:
            self._roll_back(error)
            _fail(f"range {content.label!r}", error, "it is as before")
        content.replace(out, (*coming, *zeros))
        self._commit()

    def _take(self, pool: ElasticChunkPool, count: int) -> list[ElasticChunk]:
        """Chunks of a pool that are not mapped, then chunks that this batch unmaps, then new ones."""
        found = pool.free[: -count - 1 : -1]
        if len(found) < count and pool.name in self._unused:
            reused = self._unused[pool.name][: count - len(found)]
            self._reused.update(reused)
            found += reused
        if (missing := count - len(found)) > 0:
            created, error = pool.source.create(self._driver, self._layout, pool, missing)
            self._created += created
            found += created
            if error:
                raise error
        return found

    def _place(self, taken: Mapping[str, list[ElasticChunk]]) -> None:
        """Set the mappings that come, and their labels in the order of the requests."""
        used = dict.fromkeys(taken, 0)
        for each in self._maps:
            if each.adopts:
                pool = self._layout.of(ELASTIC_POOLS)[each.pool]
                source, terms = _borrowed(self._layout, each.pool), (each.count, each.adopts.key, each.adopts.epoch)
                found, error = source.adopt(self._driver, self._layout, pool, *terms)
                self._created += found
                if error:
                    raise error
                chunks = [*found]
            else:
                first = used[each.pool]
                chunks = taken[each.pool][first : first + each.count]
                used[each.pool] += each.count
            size = self._layout.of(ELASTIC_POOLS)[each.pool].size
            self._to_map += zip(range(each.offset, each.offset + each.count * size, size), chunks, strict=True)
            self.labels += [chunk.label for chunk in chunks]
        if len(self._maps) > 1:
            self._to_map.sort(key=offset_of)

    def _out(self) -> list[Mapped]:
        """Mappings to undo, in order, with zero pages at the places of new ones. Sets the zero pages to map."""
        zero, at = self._content.zero, self._content.at
        if zero is None:
            return self._to_unmap
        covered = _granules(self._to_map, zero.size)
        new = set(covered)
        self._zeros = [(offset, zero) for offset in _granules(self._to_unmap, zero.size) if offset not in new]
        behind = [(offset, zero) for offset in covered if at.get(offset) is zero]
        return (
            sorted([*self._to_unmap, *behind], key=offset_of) if self._to_unmap and behind else self._to_unmap or behind
        )

    def _commit(self) -> None:
        for name, count in self._needed.items():
            free = self._layout.of(ELASTIC_POOLS)[name].free
            del free[max(0, len(free) - count) :]
        for name, chunks in self._unused.items():
            unused = [chunk for chunk in chunks if chunk not in self._reused] if self._reused else chunks
            self._layout.of(ELASTIC_POOLS)[name].free += reversed(
                unused
            )  # the last one is taken first: they keep their order

    def _roll_back(self, failure: MemtopoError) -> None:
        """Unmap what came, map what went, and release what was created. Raises `ElasticFailed` if it cannot."""
        driver, layout, content = self._driver, self._layout, self._content
        try:
            if self._mapping:
                came = [item for item in [*self._to_map, *self._zeros] if content.at.get(item[0]) is item[1]]
                for run in runs(sorted(came, key=offset_of)):
                    unmap_run(driver, content, run)
            if (error := restore(driver, layout, content, self._unmapped, failure)) is not None:
                raise error
            for name, chunks in _by_pool(content, [(0, chunk) for chunk in self._created]).items():
                pool = layout.of(ELASTIC_POOLS)[name]
                _, failed = pool.source.release(driver, layout, pool, chunks)
                if isinstance(failed, DriverError):
                    raise failed
        except DriverError as error:
            content.broken = content.broken or f"{failure.message}, and then {error} while the range was rolled back"
            _rebuild(layout)
            raise ElasticFailed(f"range {content.label!r} can only be taken down: {content.broken}") from error


def _rebuild(layout: Layout) -> None:
    """Bring the indices of all ranges, and the lists of unmapped chunks, up to date with what is mapped."""
    mapped: set[ElasticChunk] = set()
    for content in layout.of(ELASTIC_CONTENTS).values():
        content.rebuild()
        mapped.update(content.at.values())
    for pool in layout.of(ELASTIC_POOLS).values():
        pool.free = [chunk for number, chunk in pool.created.items() if chunk not in mapped and number not in pool.lent]


def _granules(mapped: Sequence[Mapped], unit: int) -> list[int]:
    """Offsets of the zero pages that fill as many bytes as some mappings."""
    return [at for offset, chunk in mapped for at in range(offset, offset + chunk.size, unit)]


def _by_pool(content: ElasticContent, mapped: Sequence[Mapped]) -> dict[str, list[ElasticChunk]]:
    if len(content.pools) == 1:
        return {content.pools[0]: [chunk for _, chunk in mapped]} if mapped else {}
    return by_key((chunk.pool, chunk) for _, chunk in mapped)


def _fail(what: str, error: MemtopoError, after: str) -> NoReturn:
    """Raise `ElasticFailed` for an error of the driver, with the condition `after` it; others are their holder's."""
    if not isinstance(error, DriverError):
        raise error
    full = error.name == "CUDA_ERROR_OUT_OF_MEMORY"
    hint = "release chunks that are not mapped by 'trim', or memory of other programs" if full else None
    raise ElasticFailed(f"{what}: {error}; {after}", hint=hint) from error


class ElasticRefused(MemtopoError):
    """Request that a range or a pool cannot fulfil; no driver call was made."""

    exit_code = Exit.USAGE


class AdoptRequest(Struct, frozen=True):
    """Chunks that a holder keeps under a key, to be mapped from `offset` on; of an `epoch`, if it is known."""

    offset: int
    pool: str
    key: str
    epoch: int | None = None


class MapRequest(Struct, frozen=True):
    """`count` chunks of a pool, to be mapped one after another from `offset` on: ones that it `adopts`, or others."""

    offset: int
    pool: str
    count: int = 1
    adopts: AdoptRequest | None = None


class UnmapRequest(Struct, frozen=True):
    """`size` bytes from `offset` on, in which a program has mapped whole chunks without holes."""

    offset: int
    size: int
    release: bool = False


offset_of: Callable[[Mapped], int] = itemgetter(0)
"""Offset of a mapping."""


def mappings_to_unmap(content: ElasticContent, unmaps: Sequence[UnmapRequest]) -> list[Mapped]:
    """Mappings that requests unmap, in order of offset. Raises `ElasticRefused`."""
    found = sorted((item for each in unmaps for item in mapped_part(content, each)), key=offset_of)
    if any(one[0] == other[0] for one, other in pairwise(found)):
        raise ElasticRefused(
            f"range {content.label!r}: a batch unmaps the same chunk twice", hint="name each part once"
        )
    return found


def mapped_part(content: ElasticContent, request: UnmapRequest) -> list[Mapped]:
    """Mappings in a part of a range, in order. Raises `ElasticRefused` unless it consists of whole chunks."""
    start, end, found = request.offset, request.offset + request.size, []
    if request.size <= 0:
        raise ElasticRefused(f"range {content.label!r}: {request.size:,} bytes cannot be unmapped")
    at, zero, mapped = start, content.zero, content.at
    while at < end:
        chunk = mapped.get(at)
        if chunk is None or chunk is zero:
            raise _not_mapped(content, at)
        found.append((at, chunk))
        at += chunk.size
    if at != end:
        last, chunk = found[-1]
        message = f"range {content.label!r}: {chunk.label!r} is mapped from {exact(last)} to {exact(at)}"
        raise ElasticRefused(message, hint="a chunk is unmapped as a whole: name its end, or its beginning")
    return found


def _not_mapped(content: ElasticContent, at: int) -> ElasticRefused:
    where = f"range {content.label!r}"
    if any(low <= at < high for low, high in content.fixed):
        return ElasticRefused(f"{where}: the mapping at {exact(at)} is fixed by the spec", hint="unmap other parts")
    inside = next((item for item in content.present(at, at + 1) if item[1] is not content.zero), None)
    if inside is None:
        return ElasticRefused(f"{where}: nothing is mapped at {exact(at)}", hint="'mappings' lists all mappings")
    hint = "a chunk is unmapped as a whole: name its beginning"
    return ElasticRefused(
        f"{where}: {exact(at)} is inside of {inside[1].label!r}, mapped at {exact(inside[0])}", hint=hint
    )


def require_fit(content: ElasticContent, request: MapRequest, pools: Mapping[str, ElasticChunkPool]) -> None:
    """Raise `ElasticRefused` for a request that the range could never fulfil."""
    where = f"range {content.label!r}"
    if request.pool not in content.pools:
        raise _unknown_pool(content, request.pool)
    pool = pools[request.pool]
    if request.count < 1:
        raise ElasticRefused(f"{where}: {request.count:,} chunks cannot be mapped", hint="map at least one")
    unit = max(pool.granule, content.zero.size if content.zero else 0)
    if not 0 <= request.offset < content.size:
        raise ElasticRefused(
            f"{where} begins at 0 and ends at {exact(content.size)}: {exact(request.offset)} is outside of it"
        )
    if request.offset % unit:
        near = request.offset - request.offset % unit
        message = f"{where}: the offset {exact(request.offset)} is not a multiple of {exact(unit)}"
        raise ElasticRefused(message, hint=f"the nearest ones are {exact(near)} and {exact(near + unit)}")
    end = request.offset + request.count * pool.size
    if end > content.size:
        fits = min((content.size - request.offset) // pool.size, pool.limit)
        message = f"{where} ends at {exact(content.size)}, and {request.count:,} chunks {pool.name!r} would end at"
        raise ElasticRefused(f"{message} {exact(end)}", hint=f"from {exact(request.offset)} on, {fits:,} fit")
    for piece in content.pieces[1:]:
        if request.offset < piece.start < end and (piece.start - request.offset) % pool.size:
            message = f"{where}: a chunk {pool.name!r} would lie across {exact(piece.start)}, where the access changes"
            raise ElasticRefused(message, hint="map it on one side: the driver grants access to whole chunks (fact 20)")


def _unknown_pool(content: ElasticContent, name: str) -> ElasticRefused:
    meant = nearest(name, content.pools)
    hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(content.pools) or 'none'}"
    return ElasticRefused(f"range {content.label!r} has no elastic chunks {name!r}", hint=hint)


def require_free(
    content: ElasticContent,
    maps: Sequence[MapRequest],
    mappings_to_unmap: Sequence[Mapped],
    pools: Mapping[str, ElasticChunkPool],
) -> None:
    """Raise `ElasticRefused` if something is mapped where chunks are to be mapped, or if two are to be mapped there."""
    gone = {offset for offset, _ in mappings_to_unmap}
    spans = sorted((each.offset, each.offset + each.count * pools[each.pool].size) for each in maps)
    last = 0
    for start, end in spans:
        if found := content.taken(start, end, gone):
            what = f"{found[2]!r} is mapped" if found[2] else "the spec itself maps something"
            message = f"range {content.label!r}: {what} from {exact(found[0])} to {exact(found[1])}"
            raise ElasticRefused(message, hint="unmap it before, or in the same batch" if found[2] else "map elsewhere")
        if start < last:
            message = f"range {content.label!r}: a batch maps two chunks at {exact(start)}"
            raise ElasticRefused(message, hint=f"what is before it ends at {exact(last)}")
        last = end


def require_chunks(pool: ElasticChunkPool, count: int, returning: int) -> None:
    """Raise `ElasticRefused` if a pool cannot have that many chunks more, of which the batch itself returns some."""
    left = max(0, pool.limit - len(pool.created)) + len(pool.free) + returning
    if count > left:
        message = f"chunks {pool.name!r}: {count:,} are requested, and {left:,} of {pool.limit:,} are left"
        raise ElasticRefused(message, hint="unmap some, or increase 'max' in the spec")
