"""Elastic memory of a layout: pools of chunks, and what is mapped in elastic ranges. No driver call is made here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Grant, Properties
from memtopo.kinds.layout import Layout, LayoutTable


class ElasticChunk(Struct, frozen=True, eq=False):
    """Chunk by its label in the layout, of `size` bytes; `number` is its number in the pool, -1 for a zero page.

    A holder lends it with the `epoch` of its bytes; 0 for a chunk of this process.
    """

    label: str
    size: int
    number: int
    pool: str = ""
    epoch: int = 0


Mapped = tuple[int, ElasticChunk]
"""Offset in a range, and the chunk that is mapped there."""

MappedRun = Sequence[Mapped]
"""Adjacent mappings, in order of offset."""


class AccessPiece(NamedTuple):
    """Part of an elastic range with the same access: grants of mapped chunks, and of the zero page behind the rest.

    The `expected` ones are what the driver must report for each location (fact 42).
    """

    start: int
    end: int
    grants: tuple[Grant, ...]
    zero_grants: tuple[Grant, ...]
    expected: tuple[Grant, ...]
    zero_expected: tuple[Grant, ...]


class ChunkSource(Protocol):
    """Source of the chunks of a pool: this process, or a holder that lends them."""

    def create(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, count: int
    ) -> tuple[Sequence[ElasticChunk], MemtopoError | None]:
        """Have more chunks, which are not mapped, until a call fails; return the new ones, and the error."""
        ...

    def release(
        self, driver: Driver, layout: Layout, pool: ElasticChunkPool, chunks: Sequence[ElasticChunk]
    ) -> tuple[int, MemtopoError | None]:
        """Release chunks that are not mapped, in order, until a call fails; return how many, and the error.

        They are removed from the pool, whose `drop_removed` is to follow.
        """
        ...


class ElasticChunkPool(Struct, eq=False):
    """Existing chunks of one elastic entry by number, and the chunks that are not mapped (`free`).

    The first `kept` were created with the layout, and stay. At most `limit` exist at once.
    """

    name: str
    size: int
    properties: tuple[Properties, ...]
    granule: int
    kept: int
    limit: int
    source: ChunkSource
    created: dict[int, ElasticChunk] = {}
    free: list[ElasticChunk] = []
    lent: dict[int, str] = {}
    """Exports that have lent chunks to other processes, by number; these chunks are neither free nor mapped here."""
    _returned: list[ElasticChunk] = []

    def add(self, count: int) -> list[ElasticChunk]:
        """Add the chunks that were removed last, and then chunks with the next numbers."""
        chunks = self._returned[: -count - 1 : -1]
        del self._returned[len(self._returned) - len(chunks) :]
        first = len(self.created) + len(chunks)
        for number in range(first, first + count - len(chunks)):
            chunks.append(ElasticChunk(f"{self.name}.{number}", self.size, number, self.name))
        self.created.update([(chunk.number, chunk) for chunk in chunks])
        return chunks

    def add_lent(self, number: int, epoch: int) -> ElasticChunk:
        """Add a chunk that a holder lends, by its number there."""
        chunk = self.created[number] = ElasticChunk(f"{self.name}.{number}", self.size, number, self.name, epoch)
        return chunk

    def remove(self, chunk: ElasticChunk) -> None:
        """Remove a chunk that was released; its number is used again. `drop_removed` brings `free` up to date."""
        del self.created[chunk.number]
        self.lent.pop(chunk.number, None)
        if not chunk.epoch:  # the holder numbers the chunks that it lends
            self._returned.append(chunk)

    def drop_removed(self) -> None:
        """Drop the chunks that were removed from `free`, in one pass for all of them."""
        self.free = [chunk for chunk in self.free if chunk.number in self.created]

    def properties_of(self, chunks: Sequence[ElasticChunk]) -> list[Properties]:
        """Properties that chunks are created with."""
        properties = self.properties
        if len(properties) == 1:
            return [*properties] * len(chunks)
        return [properties[chunk.number % len(properties)] for chunk in chunks]

    @property
    def releasable(self) -> list[ElasticChunk]:
        """Chunks that are not mapped and were not created with the layout."""
        return [chunk for chunk in self.free if chunk.number >= self.kept]


class ElasticContent(Struct, eq=False):
    """Content of one elastic range: chunks by offset (`at`), and their offsets in order (`starts`).

    `pieces` are the parts of the range by access, `fixed` the intervals that the spec maps itself. `zero` is mapped
    wherever nothing else is. `at` is true after each driver call, `starts` after each change. `broken` is the reason
    why the content can only be unmapped.
    """

    label: str
    base: int
    size: int
    pools: tuple[str, ...]
    pieces: tuple[AccessPiece, ...]
    fixed: tuple[tuple[int, int], ...] = ()
    zero: ElasticChunk | None = None
    at: dict[int, ElasticChunk] = {}
    starts: list[int] = []
    broken: str | None = None

    def taken(self, start: int, end: int, leaving: frozenset[int] | set[int]) -> tuple[int, int, str] | None:
        """First mapping between two offsets, without zero pages and those `leaving`: offset, end and label.

        The label is empty for a fixed mapping.
        """
        for low, high in self.fixed:
            if low < end and start < high:
                return low, high, ""
        for offset, chunk in self.present(start, end):
            if chunk is not self.zero and offset not in leaving:
                return offset, offset + chunk.size, chunk.label
        return None

    def access(self, start: int, end: int) -> Iterator[AccessPiece]:
        """Parts of the range between two offsets, cut to them."""
        for piece in self.pieces:
            if piece.start < end and start < piece.end:
                yield piece._replace(start=max(start, piece.start), end=min(end, piece.end))

    def replace(self, unmapped: Iterable[MappedRun], mapped: Iterable[MappedRun]) -> None:
        """Bring `starts` up to date after a change."""
        starts = self.starts
        for run in unmapped:
            index = bisect_left(starts, run[0][0])
            del starts[index : index + len(run)]
        for run in mapped:
            index = bisect_left(starts, run[0][0])
            starts[index:index] = [offset for offset, _ in run]

    def rebuild(self) -> None:
        """Bring `starts` up to date with `at`."""
        self.starts = sorted(self.at)

    def present(self, start: int = 0, end: int | None = None) -> Iterator[Mapped]:
        """Mappings in order of offset, zero pages among them, that are not before `start` or after `end`."""
        starts, end = self.starts, self.size if end is None else end
        index = bisect_left(starts, start)
        if index and (before := starts[index - 1]) + self.at[before].size > start:
            index -= 1
        while index < len(starts) and starts[index] < end:
            yield starts[index], self.at[starts[index]]
            index += 1

    def uncovered(self) -> Iterator[int]:
        """Offsets at which a zero page has to be mapped while the program has mapped nothing."""
        assert self.zero
        at = 0
        for low, high in (*self.fixed, (self.size, self.size)):
            yield from range(at, low, self.zero.size)
            at = high


ELASTIC_POOLS = LayoutTable[str, ElasticChunkPool]()
"""Elastic chunks by the name of their entry; their handles are in `Layout.chunks`."""

ELASTIC_CONTENTS = LayoutTable[str, ElasticContent]()
"""What is mapped in elastic ranges; `Layout.mappings` has the fixed mappings only."""


class HeapTable(Protocol):
    """Allocations of a heap, whatever keeps them."""

    def content(self) -> ElasticContent:
        """Return the allocations that have memory now, as chunks in the range of the heap."""


HEAPS = LayoutTable[str, HeapTable]()
"""Heaps by the label of their range."""


def content_of(layout: Layout, label: str) -> ElasticContent | None:
    """Return what a program has mapped in an elastic range or allocated in a heap now; None for another label."""
    if heap := layout.of(HEAPS).get(label):
        return heap.content()
    return layout.of(ELASTIC_CONTENTS).get(label)


def runs(mapped: Sequence[Mapped]) -> list[MappedRun]:
    """Divide mappings, which are in order of offset, where one does not begin at the end of the one before."""
    if not mapped:
        return []
    found: list[MappedRun] = []
    first, end = 0, mapped[0][0]
    for index, (offset, chunk) in enumerate(mapped):
        if offset != end:
            found.append(mapped[first:index])
            first = index
        end = offset + chunk.size
    found.append(mapped[first:] if first else mapped)
    return found


def run_size(run: MappedRun) -> tuple[int, int]:
    """Offset and size of adjacent mappings."""
    last, chunk = run[-1]
    return run[0][0], last + chunk.size - run[0][0]
