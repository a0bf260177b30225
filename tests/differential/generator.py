"""Random sequences of calls: most are meaningful in the state that the earlier ones have made, some are wrong.

The same seed gives the same sequence on drivers that give the same answers.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random

from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind, Properties, gpu
from tests.differential.notation import KiB, MiB, Place, grants_text, location_text, properties_text, size_text
from tests.differential.shadow import Mapped, Shadow

GRANULE = 2 * MiB
LENGTH = 60
"""Calls of a sequence."""
MODES = ("defined", "undefined", "beyond")
"""Modes: `undefined` uses released handles too, and `beyond` addresses past the end of a reservation or allocation."""
HOST, NODE = Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA, 0)
_WRONG_PLACES = (gpu(9), gpu(-1), NODE._replace(id=9), Location(LocationKind.HOST_NUMA_CURRENT))


class Generator:
    """Calls of one sequence: `next` gives a call, and `note` takes its answer."""

    def __init__(self, seed: int, gpus: int, mode: str = "defined") -> None:
        self._random = Random(f"{mode} {seed}")
        self._gpus, self._undefined, self._beyond = gpus, mode == "undefined", mode == "beyond"
        self.shadow = Shadow()
        self._numbers = dict.fromkeys("rcfa", 0)

    def next(self) -> str:
        """Return the next call."""
        while True:
            name = self._random.choices(_NAMES, cum_weights=_WEIGHTS)[0]
            call: str | None = getattr(self, f"_{name}")()
            if call:
                return call

    def note(self, call: str, answer: str) -> None:
        """Take the answer to a call."""
        self.shadow.note(call, answer)

    def _chance(self, percent: float) -> bool:
        return self._random.random() * 100 < percent

    def _new(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}{self._numbers[kind] - 1}"

    def _reserve(self) -> str | None:
        if len(self.shadow.reservations) > 4:
            return None
        random, size = self._random, self._random.choice((1, 2, 2, 3, 4, 4, 6, 8)) * GRANULE
        if self._chance(6):
            size = self._too_large(128 << 40) or random.choice((0, 1, 4 * KiB, 64 * KiB, GRANULE + 64 * KiB))
        extra = ""
        if self._chance(15):
            alignment = random.choice((1, 4 * KiB, GRANULE, 32 * MiB, 1 << 30, 6 * MiB, 4 * MiB))
            extra = f" {size_text(alignment)}"
            if self._chance(30):
                extra += f" {self._hint() if alignment <= GRANULE else 'null'}" + " 1" * self._chance(10)
        return f"{self._new('r')} = reserve {size_text(size)}{extra}"

    def _too_large(self, size: int) -> int:
        """Return a size that is refused, or mostly 0: each refusal takes a driver up to 0.1 s."""
        return size * self._chance(2)

    def _hint(self) -> str:
        known = [*self.shadow.freed, *self.shadow.reservations, "null"]
        return str(Place(self._random.choice(known), self._random.choice((0, 0, GRANULE, 64 * KiB))))

    def _free(self) -> str | None:
        empty = [each for each in self.shadow.reservations if not self.shadow.mapped_in(each)]
        if empty and self._chance(70):
            symbol = self._random.choice(empty)
            return f"free {symbol} {size_text(self.shadow.reservations[symbol])}"
        return f"free {self._span()}" if self._chance(30) else None

    def _create(self) -> str | None:
        if len(self.shadow.open_chunks()) > 5:
            return None
        size = self._random.choice((1, 1, 1, 1, 2, 2, 3)) * GRANULE
        if self._chance(4):
            size = self._too_large(32 << 40) or self._random.choice((0, 1, GRANULE + 1, 3 * MiB))
        flags = " 1" if self._chance(1) else ""
        return f"{self._new('c')} = create {size_text(size)} {properties_text(self._properties())}{flags}"

    def _properties(self) -> Properties:
        random = self._random
        place: Location = random.choice([*map(gpu, range(self._gpus))] * 3 + [NODE] * 2 + [HOST])
        if self._chance(3):
            place = random.choice(_WRONG_PLACES)
        handles = random.choice((HandleType.NONE, HandleType.FD))
        if self._chance(6):
            handles = HandleType(random.choice((2, 8, 9)))
        host = place.kind != LocationKind.GPU
        if host and place.kind == LocationKind.HOST and self._chance(80):
            handles = HandleType.NONE
        rdma, compressible = (self._chance(2 if host else 20) for _ in range(2))
        return Properties(place, handles, rdma, compressible)

    def _release(self) -> str | None:
        chunks = self.shadow.open_chunks()
        if self._undefined and self._chance(10):
            chunks = list(self.shadow.chunks)
        return f"release {self._random.choice(chunks)}" if chunks else None

    def _map(self) -> str | None:
        chunks = list(self.shadow.chunks) if self._undefined and self._chance(20) else self.shadow.open_chunks()
        if not chunks or not self.shadow.reservations:
            return None
        symbol = self._random.choice(chunks)
        size = self.shadow.chunks[symbol].size
        place = self._hole(size) if self._chance(40 if self._beyond else 85) else self._somewhere()
        if place is None or self._is_barred(place, size):
            return None
        if self._chance(4):
            size = self._random.choice((0, GRANULE, 2 * GRANULE, max(0, size - GRANULE)))
        extra = self._random.choice((" 2M", " 64K", " 0 1")) if self._chance(2) else ""
        return f"map {place} {size_text(size)} {symbol}{extra}"

    def _hole(self, size: int) -> Place | None:
        """A place with room for a mapping."""
        places: list[Place] = []
        for symbol, whole in self.shadow.reservations.items():
            taken = [(each.at.offset, each.at.offset + each.size) for each in self.shadow.mapped_in(symbol)]
            free = [
                offset
                for offset in range(0, whole - size + 1, GRANULE)
                if all(offset + size <= low or high <= offset for low, high in taken)
            ]
            places += [Place(symbol, offset) for offset in free]
        return self._random.choice(places) if places else None

    def _is_barred(self, place: Place, size: int) -> bool:
        """Return whether an area ends past its reservation or allocation, and this mode has none that do."""
        whole = {**self.shadow.reservations, **self.shadow.allocations}.get(place.symbol)
        return whole is not None and place.offset + size > whole and not self._beyond

    def _unmap(self) -> str | None:
        mappings = list(self.shadow.mappings.values())
        if not mappings:
            return f"unmap {self._span()}" if self._chance(10) else None
        if self._chance(75):
            found = self._random.choice(mappings)
            return f"unmap {found.at} {size_text(found.size)}"
        return f"unmap {self._between()}" if self._chance(60) else f"unmap {self._span()}"

    def _set(self) -> str | None:
        mappings = list(self.shadow.mappings.values())
        if not mappings:
            return None
        kind = self._random.random()
        if kind < 0.45:
            found = self._random.choice(mappings)
            where = f"{found.at} {size_text(found.size)}"
        elif kind < 0.85:
            where = self._between()
        else:
            where = self._span()
        return f"set {where} {self._grants()}"

    def _between(self) -> str:
        """From the start of one mapping to the end of another in the same reservation, holes or not."""
        first = self._random.choice(list(self.shadow.mappings.values()))
        last = self._random.choice([each for each in self.shadow.mapped_in(first.at.symbol) if each.at >= first.at])
        return f"{first.at} {size_text(last.at.offset + last.size - first.at.offset)}"

    def _grants(self) -> str:
        random = self._random
        places = [*map(gpu, range(self._gpus))] * 4 + [HOST, NODE] * 2
        grants = []
        for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3))):
            place = random.choice(_WRONG_PLACES) if self._chance(2) else random.choice(places)
            access = Access(2) if self._chance(1) else random.choice((Access.RW, Access.RW, Access.R, Access.NONE))
            grants.append(Grant(place, access))
        return grants_text(() if self._chance(1) else tuple(grants))

    def _get(self) -> str:
        place = self._somewhere()
        if self.shadow.mappings and self._chance(85):
            place = self._inside(self._random.choice(list(self.shadow.mappings.values())))
        where = self._random.choice([*map(gpu, range(self._gpus))] * 3 + [HOST, NODE])
        if self._chance(2):
            where = self._random.choice(_WRONG_PLACES)
        return f"get {place} {location_text(where)}"

    def _retain(self) -> str:
        if self.shadow.mappings and self._chance(85):
            return f"retain {self._inside(self._random.choice(list(self.shadow.mappings.values())))}"
        return f"retain {self._somewhere()}"

    def _props(self) -> str | None:
        chunks = list(self.shadow.chunks) if self._undefined else self.shadow.open_chunks()
        return f"props {self._random.choice(chunks)}" if chunks else None

    def _range(self) -> str:
        if self.shadow.mappings and self._chance(80):
            return f"range {self._inside(self._random.choice(list(self.shadow.mappings.values())))}"
        return f"range {self._somewhere()}"

    def _export(self) -> str | None:
        chunks = self.shadow.open_chunks()
        if not chunks or len(self.shadow.fds) > 4:
            return None
        shareable = [each for each in chunks if HandleType.FD in self.shadow.chunks[each].properties.handles]
        symbol = self._random.choice(shareable if shareable and self._chance(80) else chunks)
        kind = self._random.choice(("none", "win32", "fabric", "fd+fabric")) if self._chance(3) else "fd"
        return f"{self._new('f')} = export {symbol} {kind}" + " 1" * self._chance(1)

    def _import(self) -> str | None:
        if not self.shadow.fds or len(self.shadow.open_chunks()) > 7:
            return None
        return f"{self._new('c')} = import {self._random.choice(list(self.shadow.fds))}"

    def _close(self) -> str | None:
        return f"close {self._random.choice(list(self.shadow.fds))}" if self.shadow.fds else None

    def _alloc(self) -> str | None:
        if len(self.shadow.allocations) > 3:
            return None
        sizes = (0, 512, 512, 64 * KiB, 3 * MiB, GRANULE, GRANULE, 5 * MiB)
        size = (self._chance(4) and self._too_large(32 << 40)) or self._random.choice(sizes)
        return f"{self._new('a')} = alloc {size_text(size)}"

    def _freemem(self) -> str | None:
        if self._chance(8):
            return f"freemem {self._somewhere()}"
        found = self.shadow.allocations
        return f"freemem {self._random.choice(list(found))}" if found else None

    def _push(self) -> str | None:
        if len(self.shadow.contexts) > 2 or (self.shadow.contexts and self._chance(70)):
            return None
        return f"push gpu{self._random.randrange(self._gpus)}"

    def _pop(self) -> str | None:
        return "pop" if len(self.shadow.contexts) > 1 or self._chance(15) else None

    def _fill(self) -> str | None:
        place, size, _ = self._bytes()
        count = self._random.choice((4, 8, size, size, 0)) if self._chance(96) else size + 4
        if self._is_barred(place, count):
            return None
        return f"fill {place} {self._random.randrange(256)} {size_text(count)}"

    def _write(self) -> str | None:
        place, _, on_host = self._bytes()
        return self._copy(on_host, f"write {place} {self._random.getrandbits(32):08x}")

    def _read(self) -> str | None:
        for found in self._random.sample(list(self.shadow.mappings.values()), len(self.shadow.mappings)):
            chunk = self.shadow.chunks.get(found.chunk)
            if chunk and chunk.written:
                offset = self._random.choice(sorted(chunk.written))
                at = found.at._replace(offset=found.at.offset + offset)
                return self._copy(chunk.properties.location.kind != LocationKind.GPU, f"read {at} 4")
        return None

    def _touch(self) -> str | None:
        place, _, on_host = self._bytes()
        return self._copy(on_host, f"touch {place} 4")

    def _copy(self, on_host: bool, call: str) -> str | None:
        if not on_host or (self._undefined and self._chance(30)):
            return call
        if not self.shadow.contexts:
            return None
        name, place, argument = call.split()
        return f"safely gpu{self.shadow.contexts[-1]} {place} {name} {argument}"

    def _bytes(self) -> tuple[Place, int, bool]:
        """A place to fill or copy, the bytes from there to the end of what is there, and if it may be host memory."""
        areas: list[Mapped | str] = [*self.shadow.mappings.values(), *self.shadow.allocations]
        if not areas or self._chance(4):
            place = self._somewhere()
            return Place("junk") if self._is_barred(place, 4) else place, 4, bool(self.shadow.mappings)
        found = self._random.choice(areas)
        if isinstance(found, str):
            return Place(found), max(4, self.shadow.allocations[found]), False
        offset = self._random.choice((0, 0, 0, 64 * KiB, found.size - 4))
        chunk = self.shadow.chunks.get(found.chunk)
        on_host = not chunk or chunk.properties.location.kind != LocationKind.GPU
        return found.at._replace(offset=found.at.offset + offset), found.size - offset, on_host

    def _gran(self) -> str:
        return f"gran {properties_text(self._properties())}" + " rec" * self._chance(50)

    def _inside(self, found: Mapped) -> Place:
        offset = self._random.choice((0, 0, 0, 1, 64 * KiB, found.size - 1, found.size // 2))
        return found.at._replace(offset=found.at.offset + offset)

    def _somewhere(self) -> Place:
        """Any granule of a reservation or an allocation, or of nothing."""
        if self._chance(4) or not (self.shadow.reservations or self.shadow.allocations):
            return Place(self._random.choice(("null", "junk")))
        if self.shadow.allocations and (self._chance(15) or not self.shadow.reservations):
            symbol = self._random.choice(list(self.shadow.allocations))
            size = self.shadow.allocations[symbol]
            return Place(symbol, self._random.choice((0, 0, max(0, size // 2), max(0, size - 1))))
        symbol, size = self._random.choice(list(self.shadow.reservations.items()))
        offset = self._random.randrange(size // GRANULE) * GRANULE
        return Place(symbol, offset + (self._random.choice((1, 64 * KiB, MiB)) if self._chance(5) else 0))

    def _span(self) -> str:
        """Any granules of a reservation, or past its end."""
        if not self.shadow.reservations or self._chance(3):
            return f"{self._random.choice(('null', 'junk'))} {size_text(GRANULE)}"
        symbol, size = self._random.choice(list(self.shadow.reservations.items()))
        first = self._random.randrange(size // GRANULE)
        last = self._random.randrange(first, size // GRANULE) + 1 + (self._beyond and self._chance(20))
        count = (last - first) * GRANULE
        if self._chance(6):
            count = self._random.choice((0, 64 * KiB, MiB, max(0, count - MiB)))
        return f"{Place(symbol, first * GRANULE)} {size_text(count)}"


_FREQUENCIES = {
    "reserve": 5, "free": 3, "create": 8, "release": 4, "map": 14, "unmap": 6, "set": 16, "get": 10, "retain": 3,
    "props": 2, "range": 5, "export": 3, "import": 3, "close": 2, "alloc": 2, "freemem": 2, "push": 9, "pop": 1,
    "fill": 3, "write": 3, "read": 4, "touch": 2, "gran": 1,
}  # fmt: skip
_NAMES, _WEIGHTS = list(_FREQUENCIES), list(accumulate(_FREQUENCIES.values()))
