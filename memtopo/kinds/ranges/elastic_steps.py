"""Steps of elastic ranges."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, LocationKind, gpu
from memtopo.driver.wrappers import call_each
from memtopo.geometry.access import AccessParts, segments
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.chunks.pools import release_all
from memtopo.kinds.elastic import (
    ELASTIC_CONTENTS,
    ELASTIC_POOLS,
    AccessPiece,
    ElasticChunk,
    ElasticContent,
    Mapped,
    MappedRun,
    run_size,
    runs,
)
from memtopo.kinds.layout import LateError, Layout, current
from memtopo.kinds.mappings import expected_access, host_has_access
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.resources import ReserveRange
from memtopo.kinds.step import Finding, Phase, Step, StepDescription, Undoing
from memtopo.machine import Machine


class ZeroChunk(Struct, frozen=True):
    """Chunk that backs an elastic range, with the GPU that fills it with zeros."""

    label: str
    size: int
    device: int


class OpenRange(Step, frozen=True):
    """Let a program map chunks of the `pools` in a range, and map the zero page wherever nothing else is.

    `fixed` are the intervals that the spec maps itself. The undo unmaps everything that the program has mapped, and
    releases the chunks that it has created for it.
    """

    label: str
    size: int
    pools: tuple[str, ...]
    pieces: tuple[AccessPiece, ...]
    fixed: tuple[tuple[int, int], ...]
    zero: ZeroChunk | None

    phase = Phase.MAP
    verb = "open"
    call = "cuMemMap"
    undoing = Undoing("cuMemUnmap", "empty")
    leaks_as = "mappings in"
    provided = "elastic range", "label"

    @property
    def calls(self) -> int:
        """Number of zero pages that are mapped."""
        fixed = sum(end - start for start, end in self.fixed)
        return (self.size - fixed) // self.zero.size if self.zero else 0

    @property
    def needs(self) -> tuple[Hashable, ...]:
        zero = [("chunk", self.zero.label)] if self.zero else []
        return (("range", self.label), *(("elastic chunks", name) for name in self.pools), *zero)

    def do(self, driver: Driver, layout: Layout) -> None:
        base, size = layout.ranges[self.label]
        zero = ElasticChunk(self.zero.label, self.zero.size, -1) if self.zero else None
        content = ElasticContent(self.label, base, size, self.pools, self.pieces, self.fixed, zero)
        layout.of(ELASTIC_CONTENTS)[self.label] = content
        if self.zero and zero and (offsets := list(content.uncovered())):
            _fill(driver, layout, content, (offsets[0], zero), self.zero.device)
            mapped = [(offset, zero) for offset in offsets]
            map_chunks(driver, layout, content, mapped)
            content.rebuild()
            grant(driver, content, runs(mapped), zero=True)

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Unmap everything, and release the chunks; after an error, everything is mapped as before.

        At the end of the layout, what a refused call leaves is unmapped chunk by chunk, and what stays is not mapped
        anew.
        """
        content = layout.of(ELASTIC_CONTENTS).get(self.label)
        if content is None:
            return
        content.rebuild()
        mapped = list(content.present())
        error = _unmap(driver, content, runs(mapped))
        if error and not layout.ending:
            restore(driver, layout, content, [each for each in mapped if each[0] not in content.at], error)
            raise error
        if error:
            for each in list(content.at.items()):
                _unmap(driver, content, [[each]])
            if content.at:
                raise MemtopoError(f"{error}; {len(content.at):,} of {len(mapped):,} mappings stay") from error
        for _, chunk in mapped:
            if chunk is not content.zero:
                layout.of(ELASTIC_POOLS)[chunk.pool].free.append(chunk)
        for name in self.pools:
            pool = layout.of(ELASTIC_POOLS)[name]
            release_all(driver, layout, pool, pool.releasable)  # the undo of the pool tries again
            pool.drop_removed()
        del layout.of(ELASTIC_CONTENTS)[self.label]
        if error:
            raise LateError(error)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        content = layout.of(ELASTIC_CONTENTS)[self.label]
        if content.broken:
            yield Finding("elastic range", self.label, "what was mapped", content.broken, self.path)
        for offset, chunk in list(content.present()):
            piece = next(content.access(offset, offset + chunk.size))
            access = piece.zero_expected if chunk is content.zero else piece.expected
            yield from MapChunk(self.path, self.label, offset, chunk.label, chunk.size, access).check(driver, layout)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, ", ".join(self.pools), 0, self.label.partition(".")[0], "elastic")

    def blocks(self) -> tuple[str, ...]:
        return (ReserveRange.leak(self.label),)


class OpenZeroRange(OpenRange, frozen=True):
    """Let a program map chunks in a range, whose zero page is mapped wherever nothing else is."""

    verb = "map zero page"

    def describe(self) -> StepDescription:
        zero = self.zero.label if self.zero else ""
        return StepDescription(self.label, zero, 0, self.label.partition(".")[0], f"elastic: {', '.join(self.pools)}")


def elastic_steps(geometry: Geometry, machine: Machine) -> Iterator[OpenRange]:
    """Steps that open the elastic ranges of a geometry, but heaps."""
    for group in geometry.of(RangeGroup).values():
        if (backing := group.elastic) is None or backing.sized_by_program:
            continue
        zero: ZeroChunk | None = None
        if backing.zero:
            zero = ZeroChunk(backing.zero.name, backing.zero.size, backing.zero.location_of(0).id)
        for instance in range(group.count):
            pieces = tuple(access_pieces(group, instance, geometry, machine))
            placed = geometry.placements.get((group.name, instance), ())
            fixed = tuple((each.offset, each.end) for each in placed)
            names = tuple(chunk.name for chunk in backing.chunks)
            step = OpenZeroRange if backing.zero else OpenRange
            yield step(group.path, group.label(instance), group.size, names, pieces, fixed, zero)


def access_pieces(group: RangeGroup, instance: int, geometry: Geometry, machine: Machine) -> Iterator[AccessPiece]:
    """Pieces of an elastic range by access, without holes between them."""
    chunks = group.elastic.chunks if group.elastic else ()
    on_host = any(location.kind is not LocationKind.GPU for each in chunks for location in each.locations)
    with_host = on_host or host_has_access(geometry)

    def piece(start: int, end: int, grants: tuple[Grant, ...]) -> AccessPiece:
        reading = tuple(Grant(location, Access.R) for location, _ in grants)
        expected = (expected_access(each, geometry, machine, with_host=with_host) for each in (grants, reading))
        return AccessPiece(start, end, grants, reading, *expected)

    at = 0
    for segment in segments(AccessParts(geometry.parts).of(group.name, instance)):
        if segment.start > at:
            yield piece(at, segment.start, ())
        yield piece(segment.start, segment.end, segment.grants)
        at = segment.end
    if at < group.size:
        yield piece(at, group.size, ())


def map_chunks(driver: Driver, layout: Layout, content: ElasticContent, mapped: Sequence[Mapped]) -> None:
    """Map chunks at offsets of a range; `content.at` has the mapped ones if a call fails."""
    base, handles = content.base, layout.chunks
    mappings = [(base + offset, chunk.size, handles[chunk.label]) for offset, chunk in mapped]
    made, error = call_each(driver, "mem_map", mappings)
    content.at.update(mapped[: len(made)])
    if error:
        raise error


def unmap_run(driver: Driver, content: ElasticContent, run: MappedRun) -> None:
    """Unmap adjacent chunks by one call."""
    offset, size = run_size(run)
    driver.mem_unmap(content.base + offset, size)
    for start, _ in run:
        del content.at[start]


def _unmap(driver: Driver, content: ElasticContent, mapped: Iterable[MappedRun]) -> DriverError | None:
    """Unmap adjacent chunks, each by one call, until one is refused; return its error."""
    try:
        for run in mapped:
            unmap_run(driver, content, run)
    except DriverError as error:
        return error
    return None


def grant(driver: Driver, content: ElasticContent, mapped: Iterable[MappedRun], *, zero: bool = False) -> None:
    """Grant access to adjacent chunks, by one call for those with the same access."""
    for run in mapped:
        offset, size = run_size(run)
        end = offset + size
        for piece in content.pieces:
            if piece.start < end and offset < piece.end and (grants := piece.zero_grants if zero else piece.grants):
                start = max(offset, piece.start)
                driver.mem_set_access(content.base + start, min(end, piece.end) - start, grants)


def _fill(driver: Driver, layout: Layout, content: ElasticContent, first: Mapped, device: int) -> None:
    """Fill the zero page with zeros, by its own GPU where it is mapped first, and unmap it."""
    map_chunks(driver, layout, content, [first])
    offset, zero = first
    address = content.base + offset
    driver.mem_set_access(address, zero.size, (Grant(gpu(device), Access.RW),))
    with current(driver, layout.contexts[device]):
        driver.memset_d8(address, 0, zero.size)
        driver.ctx_synchronize()
    unmap_run(driver, content, [first])


def restore(
    driver: Driver, layout: Layout, content: ElasticContent, gone: Sequence[Mapped], failure: MemtopoError
) -> DriverError | None:
    """Map again what is gone, with its access, after a failure; an error is returned, and breaks the content."""
    try:
        map_chunks(driver, layout, content, gone)
        for zero in (False, True):
            grant(driver, content, runs([each for each in gone if (each[1] is content.zero) is zero]), zero=zero)
    except DriverError as error:
        content.broken = f"{failure.message}, and then {error} while the range was rolled back"
        content.rebuild()
        return error
    return None
