"""Physical memory: chunks, the references that keep them, and when they go (facts 3 and 18)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from memtopo.driver.sim.arena import Arena, Physical
from memtopo.driver.sim.budget import Budget
from memtopo.driver.sim.creation import Creation
from memtopo.driver.sim.refusal import invalid
from memtopo.driver.types import Properties

FIRST_HANDLE = 0x3E00_0000


@dataclass(slots=True, eq=False)
class Chunk:
    """Physical memory; lives here as long as a handle reference or a mapping does.

    An imported one is another process's too, and takes none of this one's memory.
    """

    handle: int
    size: int
    granule: int
    properties: Properties
    physical: Physical
    references: int = 1
    mappings: int = 0
    imported: bool = False


class Chunks:
    """Every chunk of one process."""

    def __init__(self, creation: Creation, budget: Budget, arena: Arena) -> None:
        self._creation, self._budget, self._arena = creation, budget, arena
        self._numbers = count(FIRST_HANDLE, 16)
        self._open: dict[int, Chunk] = {}

    def create(self, size: int, properties: Properties, flags: int) -> int:
        """Create a chunk with one reference (fact 3)."""
        created = self._creation.check(size, properties, flags)
        self._budget.take(created.location, size)
        granule = self._creation.granularity(properties)
        return self._opened(Chunk(next(self._numbers), size, granule, created, self._arena.take(size)))

    def adopt(self, properties: Properties, granule: int, physical: Physical) -> int:
        """A handle with one reference to another process's chunk, however often it is here already (fact 27)."""
        return self._opened(Chunk(next(self._numbers), physical.size, granule, properties, physical, imported=True))

    def get(self, handle: int) -> Chunk:
        """The chunk behind a handle that still has a reference."""
        chunk = self._open.get(handle)
        if chunk is None:
            raise invalid("the handle is not open")
        return chunk

    def release(self, handle: int) -> None:
        """Give one reference back; the last one closes the handle, also while mapped (fact 18)."""
        chunk = self.get(handle)
        chunk.references -= 1
        if not chunk.references:
            del self._open[handle]
            self._settle(chunk)

    def retain(self, chunk: Chunk) -> int:
        """One more reference to a mapped chunk, under the handle it was created with (fact 18)."""
        chunk.references += 1
        self._open[chunk.handle] = chunk
        return chunk.handle

    def unmapped(self, chunk: Chunk) -> None:
        """Count one mapping less."""
        chunk.mappings -= 1
        self._settle(chunk)

    def _opened(self, chunk: Chunk) -> int:
        self._open[chunk.handle] = chunk
        return chunk.handle

    def _settle(self, chunk: Chunk) -> None:
        if not chunk.references and not chunk.mappings:
            if not chunk.imported:
                self._budget.give(chunk.properties.location, chunk.size)
            self._arena.give(chunk.physical)
