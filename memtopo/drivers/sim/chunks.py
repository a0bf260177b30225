"""Chunks of physical memory: what a machine can create, granularity, and references (facts 1 to 4, 6, 18)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import count, pairwise

from msgspec import Struct, field

from memtopo.driver.types import AllocationType, HandleType, Location, LocationKind, Properties, gpu
from memtopo.drivers.sim.address_space import Reservations
from memtopo.drivers.sim.calls import NOT_OPEN, PAST_RESERVATION, Numbered, RefusedCall, invalid, refuse_if, unsupported
from memtopo.drivers.sim.devices import HOST_NODE
from memtopo.drivers.sim.physical import Physical
from memtopo.drivers.sim.process import SimProcess
from memtopo.machine import Machine

FIRST_HANDLE = 0x3E00_0000


class SimChunk(Struct, eq=False):
    """Physical memory, which lives as long as a handle reference or a mapping of this process.

    It takes memory of the budget at `takes`; an imported chunk takes none.
    """

    size: int
    granule: int
    properties: Properties
    physical: Physical
    handle: int = 0
    references: int = 1
    mappings: int = 0
    imported: bool = False
    takes: Location | None = None
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        if self.properties.rdma:
            self.anchor = Anchor()

    @property
    def freed(self) -> bool:
        """True if neither a handle nor a mapping of this process keeps the memory."""
        return not self.references and not self.mappings

    def check_complete(self) -> None:
        """Refuse an object that cannot be mapped yet; a chunk always can."""


class Anchor(Struct):
    """The mapping of an RDMA-capable chunk that its other mappings depend on (fact 64), by address.

    It is `first`: the mapping that was made while there was none. Access that is granted while there is none makes a
    mapping a `stray` one, beside which the driver can neither map the chunk nor grant access to other mappings of it.
    """

    first: int | None = None
    stray: int | None = None

    def map(self, address: int) -> None:
        """Note a mapping; refuses it beside a stray one."""
        if self.stray is not None:
            raise _beside_stray()
        if self.first is None:
            self.first = address

    def unmap(self, address: int) -> None:
        """Note that a mapping has gone."""
        self.first = None if self.first == address else self.first
        self.stray = None if self.stray == address else self.stray

    def grant(self, address: int, access: int, *, peer: bool) -> None:
        """Note access of a GPU to a mapping; refuses a peer's without a first one, and any beside a stray one."""
        if self.first is not None:
            return
        if not access:
            self.stray = None if self.stray == address and not peer else self.stray
        elif peer:
            raise invalid("the first mapping of this rdma chunk was unmapped, and the gpu is not the chunk's (fact 64)")
        elif self.stray in {None, address}:
            self.stray = address
        else:
            raise _beside_stray()


def _beside_stray() -> RefusedCall:
    reason = "the first mapping of this rdma chunk was unmapped, and another was granted access since (fact 64)"
    return RefusedCall("CUDA_ERROR_UNKNOWN", reason)


class SimChunks:
    """Chunks of one process."""

    def __init__(self, sim: SimProcess, creation: Creation) -> None:
        self._sim, self._creation = sim, creation
        self._open: Numbered[SimChunk] = Numbered(FIRST_HANDLE, NOT_OPEN)

    def mem_create(self, size: int, properties: Properties, flags: int = 0) -> int:
        """Create a chunk with one reference (fact 3)."""
        created, granule = self._creation.check(size, properties, flags)
        self._sim.budget.check(properties.location, size)
        self._creation.check_permitted(properties)
        physical = self._sim.arena.take(size)
        self._sim.budget.add(properties.location, size)
        return self.add(SimChunk(size, granule, created, physical, takes=properties.location))

    def adopt(self, properties: Properties, granule: int, physical: Physical) -> int:
        """Return a new handle, with one reference, to a chunk of another process (fact 27)."""
        return self.add(SimChunk(physical.size, granule, properties, physical, imported=True))

    def add(self, chunk: SimChunk) -> int:
        """Add a chunk, or an object that is mapped, exported and released as chunks are; returns its handle."""
        chunk.handle = self._open.add(chunk)
        return chunk.handle

    def get(self, handle: int) -> SimChunk:
        """Chunk of an open handle."""
        return self._open[handle]

    def mem_release(self, handle: int) -> None:
        """Release one reference; the last one closes the handle, also while the chunk is mapped (fact 18)."""
        chunk = self._open[handle]
        chunk.references -= 1
        if not chunk.references:
            del self._open[handle]
            self._settle(chunk)

    def retain(self, chunk: SimChunk) -> int:
        """Add a reference to a mapped chunk, under the handle that it was created with (fact 18)."""
        chunk.references += 1
        self._open[chunk.handle] = chunk
        return chunk.handle

    def unmapped(self, chunk: SimChunk) -> None:
        """Remove one mapping from the chunk's count."""
        chunk.mappings -= 1
        self._settle(chunk)

    def _settle(self, chunk: SimChunk) -> None:
        if chunk.freed:
            if chunk.takes:
                self._sim.budget.give(chunk.takes, chunk.size)
            self._sim.arena.give(chunk.physical)


USUAL_GRANULE = 2 << 20  # returned by the driver even for a device that does not exist (fact 2)


class Creation:
    """Rules of creation on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._checked: dict[Properties, tuple[Properties, int]] = {}

    def mem_get_allocation_granularity(self, properties: Properties, *, recommended: bool = False) -> int:
        """Recorded granularity; without a record, that of plain chunks at the location, or the usual one (fact 2)."""
        found = self._machine.granularity(properties) or self._machine.granularity(Properties(properties.location))
        if found is None:
            return USUAL_GRANULE
        return found.recommended if recommended else found.minimum

    def check(self, size: int, properties: Properties, flags: int) -> tuple[Properties, int]:
        """Return the properties of a created chunk, and its granularity; refuses what cannot be created.

        See facts 3, 4 and 6.
        """
        refuse_if(flags, "flags must be 0")
        known = self._checked.get(properties)
        granule = known[1] if known else self.mem_get_allocation_granularity(properties)
        refuse_if(size <= 0 or size % granule, "the size is not a multiple of the granularity")
        if known is None:
            known = self._checked[properties] = self._check_properties(properties), granule
        return known

    def check_permitted(self, properties: Properties) -> None:
        """Refuse fabric handles that failed in a trial (fact 4); the driver looks at free memory first (fact 65)."""
        if properties.handles and HandleType.FABRIC in properties.handles:
            for feature in _extras(properties):
                self._check_trial(properties.location, feature)

    def check_fabric(self) -> None:
        """Refuse fabric handles on a machine where they work on no GPU."""
        gpus = [location for location in self._machine.locations if location.kind == LocationKind.GPU]
        if not any(self._machine.trial(location, "fabric").works for location in gpus):
            for location in gpus:
                self._check_trial(location, "fabric")
            raise unsupported("there is no gpu")

    def _check_properties(self, properties: Properties) -> Properties:
        refuse_if(properties.type != AllocationType.PINNED, "only pinned memory can be created")
        if properties.location.kind == LocationKind.GPU:
            if properties.location not in self._machine.locations:
                raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"{properties.location} does not exist")
        else:
            self._check_host(properties)
        for feature in ("vmm", *_extras(properties)):
            if "fabric" not in feature:
                self._check_trial(properties.location, feature)
        if properties.location.kind == LocationKind.HOST:
            properties = properties._replace(location=HOST_NODE)
        # Compression is silently left out of memory that network cards can reach (fact 41).
        return properties._replace(compressible=properties.compressible and not properties.rdma)

    def _check_host(self, properties: Properties) -> None:
        location = properties.location
        refuse_if(location.kind == LocationKind.HOST_NUMA_CURRENT, "memory cannot be created on the current NUMA node")
        refuse_if(properties.flags, "host memory is neither rdma nor compressible")
        if location.kind == LocationKind.HOST and properties.handles != HandleType.NONE:
            raise invalid("host memory does not support handle types; memory of a NUMA node does")
        refuse_if(location not in self._machine.locations, f"{location} does not exist")

    def _check_trial(self, location: Location, feature: str) -> None:
        """Refuse what failed in a trial (fact 4); without a trial, rare features are assumed not to work."""
        trial = self._machine.trial(location, feature)
        if trial.works is None and location.kind != LocationKind.GPU and "fabric" in feature:
            # A machine has fabric or not: a node's memory was refused where the GPUs' was (fact 4).
            trial = self._machine.trial(gpu(0), feature)
        if trial.works is None:
            if feature in {"win32", "win32_kmt"}:
                raise invalid(f"{feature} handles belong to another operating system")  # fact 3
            refuse_if(feature == "fabric", f"{feature} on {location} was never tried", "CUDA_ERROR_NOT_SUPPORTED")
        if trial.refused:
            raise RefusedCall(trial.error or "CUDA_ERROR_NOT_SUPPORTED", f"{feature} on {location} does not work")


def _extras(properties: Properties) -> list[str]:
    """Features requested beyond plain memory, by the names of a machine's trials."""
    both = ["fd+fabric"] * (HandleType.FD | HandleType.FABRIC in properties.handles)
    return [*properties.handles.words, *both, *properties.flags]


class Mapping(Struct, eq=False):
    """A whole chunk at an address, with access rights of its own, none at first (facts 16, 19)."""

    start: int
    end: int
    chunk: SimChunk
    access: dict[Location, int] = {}
    number: int = field(default_factory=count(1 << 40).__next__)
    """Number that no other mapping or allocation has (`CU_POINTER_ATTRIBUTE_BUFFER_ID`)."""

    @property
    def size(self) -> int:
        """Bytes of the chunk."""
        return self.end - self.start

    @property
    def on_host(self) -> bool:
        """True for a chunk of the host's memory."""
        return self.chunk.properties.location.kind != LocationKind.GPU

    @property
    def physical(self) -> Physical:
        """Bytes of the mapped chunk."""
        return self.chunk.physical


class SimMappings:
    """Mappings of one process, in order of their addresses."""

    def __init__(self, addresses: Reservations, chunks: SimChunks) -> None:
        self._addresses, self._chunks = addresses, chunks
        self._starts: list[int] = []
        self._at: dict[int, Mapping] = {}
        self._latest: Mapping | None = None
        """Mapping found last: its other end is mostly asked for next."""

    def mem_map(self, address: int, size: int, handle: int, offset: int = 0, flags: int = 0) -> None:
        """Map a whole chunk inside one reservation (facts 13 to 15)."""
        refuse_if(flags, "flags must be 0")
        chunk = self._chunks.get(handle)
        refuse_if(size <= 0 or not address, "the size or the address is 0")
        refuse_if(offset, "only a whole chunk can be mapped: the offset must be 0", "CUDA_ERROR_NOT_SUPPORTED")
        if size != chunk.size:
            raise unsupported("only a whole chunk can be mapped: the size must be the chunk's")
        chunk.check_complete()
        index = self._free_index(address, size, chunk.granule)
        if chunk.anchor:
            chunk.anchor.map(address)
        self._starts.insert(index, address)
        self._at[address] = Mapping(address, address + size, chunk)
        chunk.mappings += 1

    def mem_unmap(self, address: int, size: int) -> None:
        """Remove all mappings in a range, which must be reserved and cut no mapping (fact 17)."""
        refuse_if(size <= 0, "the size is 0")
        first, last = self._span(address, address + size)
        refuse_if(not self._addresses.covers(address, address + size), "the range is not reserved")
        self._latest = None
        for start in self._starts[first:last]:
            chunk = self._at.pop(start).chunk
            if chunk.anchor:
                chunk.anchor.unmap(start)
            self._chunks.unmapped(chunk)
        del self._starts[first:last]

    def find(self, address: int) -> Mapping | None:
        """Mapping around an address; None if there is none."""
        mapping = self._at.get(address) or self._latest
        if mapping is None or not mapping.start <= address < mapping.end:
            at = bisect_right(self._starts, address) - 1
            mapping = self._at[self._starts[at]] if at >= 0 else None
            if mapping is None or address >= mapping.end:
                return None
        self._latest = mapping
        return mapping

    def around(self, address: int) -> Mapping:
        """Mapping around an address; refuses if there is none."""
        mapping = self.find(address)
        if mapping is None:
            raise invalid("nothing is mapped at the address")
        return mapping

    def contiguous(self, address: int, size: int) -> list[Mapping]:
        """Mappings from the start of a range to its first hole; both ends of the range have to be ends of mappings."""
        refuse_if(size <= 0, "the size is 0")
        first, last = self._span(address, address + size)
        found = [self._at[start] for start in self._starts[first:last]]
        if not found or found[0].start != address or found[-1].end != address + size:
            raise invalid("the range does not begin and end with a mapping")
        hole = next((at for at, (one, next) in enumerate(pairwise(found), 1) if one.end != next.start), len(found))
        return found[:hole]

    def mem_retain_allocation_handle(self, address: int) -> int:
        return self._chunks.retain(self.around(address).chunk)

    def mem_address_free(self, address: int, size: int) -> None:
        """Free exactly one reservation, in which nothing is mapped (fact 12)."""
        self._addresses.check_whole(address, size)
        at = bisect_left(self._starts, address)
        refuse_if(at < len(self._starts) and self._starts[at] < address + size, "something is mapped inside")
        self._addresses.free(address, size)

    def _free_index(self, address: int, size: int, granule: int) -> int:
        """Index of a new mapping at this address; refuses addresses that are mapped or not reserved."""
        refuse_if(address % granule, "the address is not aligned to the granularity")
        reserved = self._addresses.around(address)
        if reserved is None:
            raise invalid("the address is not reserved")
        refuse_if(address + size > reserved[1], PAST_RESERVATION)
        index = bisect_left(self._starts, address)
        before = index and self._at[self._starts[index - 1]].end > address
        if before or (index < len(self._starts) and self._starts[index] < address + size):
            raise invalid("something is mapped there")
        return index

    def _span(self, address: int, end: int) -> tuple[int, int]:
        """Indices of the mappings in a range, as a half-open interval; refuses to cut one (facts 17, 20)."""
        first, last = bisect_left(self._starts, address), bisect_left(self._starts, end)
        cut_at_start = first and self._at[self._starts[first - 1]].end > address
        cut_at_end = last > first and self._at[self._starts[last - 1]].end > end
        refuse_if(cut_at_start or cut_at_end, "the range covers a part of a mapping")
        return first, last
