"""Entries of a spec that is made of a record: names, ranges, memory, exports and imports of one process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from msgspec import Struct, field

from memtopo.common.units import by_key, exact, rounded
from memtopo.driver.types import PROPERTY_FLAGS
from memtopo.records.calls import Exported, Mapped, Memory, Reservation, paired, source_of
from memtopo.records.live import ProcessMemory

NOUNS = {
    "chunks": "chunk", "buffers": "buffer", "managed": "managed", "pinned": "staging", "pools": "pool",
    "allocations": "allocation", "events": "event",
}  # fmt: skip
"""Names of entries by their section, where the record has no source of the memory; of exports, what they export."""

OUTSIDE = "outside"
"""Holder of imports whose exporter the record does not have."""

_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
"""What a name of a spec cannot have."""

_LONGEST = 100
"""Characters of a name, which may get more of them: a spec has names of 128."""

_NO_SPEC = {
    "registered": "registered memory of the program itself, for which a spec names the file that it is in",
    "external": "memory of another API, for which a spec names the producer",
    "multicast": "a multicast object, whose team and binds cannot be distinguished in the record",
}


def word(text: str) -> str:
    """Return a text with the characters that a name of a spec may have."""
    return _OTHER.sub("-", text)[:_LONGEST].strip("-")


def unused(taken: Container[str], *wanted: str) -> str:
    """Return the first of several names that is not taken, or the last of them with a number."""
    numbered = (f"{wanted[-1]}-{number}" for number in count(2))
    return next(each for each in chain(wanted, numbered) if each not in taken)


class DraftEntry(Struct):
    """An entry of a section: its objects, in order."""

    name: str
    members: list[Memory]

    def reference(self, first: int = 0, count: int | None = None) -> str:
        """Name of the entry, of one of its elements, or of several."""
        whole = len(self.members)
        if count is None or count == whole:
            return self.name
        return f"{self.name}.{first}" if count == 1 else f"{self.name}.{first}:{first + count}"


class Place(Struct, frozen=True):
    """An object as an element of an entry."""

    entry: DraftEntry
    index: int


class RangeGroup(Struct, frozen=True):
    """Equal ranges: the same size, the same memory at the same offsets, and the same access."""

    name: str
    ranges: tuple[Reservation, ...]
    mapped: tuple[tuple[Mapped, ...], ...]


class ProcessSpec(Struct):
    """The sections of one process."""

    memory: ProcessMemory
    name: str
    exported: set[int]
    sections: dict[str, dict[str, Any]] = {}
    places: dict[int, Place] = {}
    notes: list[str] = []
    exports: dict[tuple[str, int, int, str], str] = {}
    groups: tuple[RangeGroup, ...] = ()
    _names: Counter[str] = field(default_factory=Counter)

    def name_for(self, wanted: str) -> str:
        """A name of the process that no entry has yet."""
        plain = word(wanted) or "entry"
        return self._numbered(plain if plain[0].isalpha() else f"m{plain}")

    def _numbered(self, name: str) -> str:
        self._names[name] += 1
        return name if self._names[name] == 1 else self._numbered(f"{name}-{self._names[name]}")

    def add(self, section: str, name: str, fields: Any) -> None:
        """Add an entry to a section."""
        self.sections.setdefault(section, {})[name] = fields

    def members(self) -> Iterator[Memory]:
        """Yield the objects that have an entry."""
        return (place.entry.members[place.index] for place in self.places.values())

    def declare(self, kind: str, members: Sequence[Memory], fields: Mapping[str, Any]) -> None:
        """Declare equal objects in one entry, or one for each location if these do not alternate."""
        locations = [each.location for each in members]
        located = list(dict.fromkeys(locations))
        if all(each == located[index % len(located)] for index, each in enumerate(locations)):
            name = self.name_for(source_of(members[0].call) or NOUNS[kind])
            place = {"location": located[0] if len(located) == 1 else located}
            every = place | dict(fields) if kind in ("chunks", "buffers") else dict(fields)
            if len(members) > 1:
                every["count"] = len(members)
            self.add(kind, name, every)
            entry = DraftEntry(name, list(members))
            self.places |= {id(each): Place(entry, index) for index, each in enumerate(members)}
            return
        for location in located:
            self.declare(kind, [each for each in members if each.location == location], fields)


def _mapped_in(process: ProcessMemory, held: Reservation) -> tuple[Mapped, ...]:
    return tuple(process.mapped.within(held.address, held.size))


def range_groups(spec: ProcessSpec) -> Iterator[RangeGroup]:
    """Yield the ranges of a process in groups of equal ones, in the order of their reservation."""
    found: dict[Hashable, list[Reservation]] = {}
    for held in sorted(spec.memory.ranges, key=lambda each: each.call.number):
        content = tuple(
            (each.address - held.address, each.size, _properties(each.chunk), each.chunk.location, access_words(each))
            for each in _mapped_in(spec.memory, held)
        )
        found.setdefault((held.size, held.alignment, content), []).append(held)
    for ranges in found.values():
        name = spec.name_for(source_of(ranges[0].call) or "range")
        yield RangeGroup(name, tuple(ranges), tuple(_mapped_in(spec.memory, each) for each in ranges))


def access_words(mapped: Mapped) -> tuple[tuple[str, str], ...]:
    """Access of a mapping: locations with words."""
    return tuple(sorted(mapped.grants.items()))


def _properties(chunk: Memory) -> Hashable:
    """All that chunks of one entry have in common besides their location."""
    flags = tuple(chunk.details.get(flag, False) is True for flag in PROPERTY_FLAGS)
    handles = chunk.details.get("handles", ())
    return chunk.imported, chunk.kind, chunk.size, tuple(handles), flags


def declare_memory(spec: ProcessSpec) -> None:
    """Declare ranges, chunks by the group of ranges in which they are first mapped, and the other memory."""
    seen: set[int] = set()
    for group in spec.groups:
        fields: dict[str, Any] = {"size": exact(group.ranges[0].size)}
        if group.ranges[0].alignment > 1:
            fields["align"] = exact(group.ranges[0].alignment)
        if len(group.ranges) > 1:
            fields["count"] = len(group.ranges)
        spec.add("ranges", group.name, fields)
        new: dict[Hashable, list[Memory]] = {}
        for each in (mapped.chunk for element in group.mapped for mapped in element):
            if id(each) not in seen:
                seen.add(id(each))
                new.setdefault(_properties(each), []).append(each)
        _declare_chunks(spec, new.values())
    others = [each for each in spec.memory.chunks() if id(each) not in seen]
    _declare_chunks(spec, by_key(((_properties(each), each.location), each) for each in others).values())
    for kind in ("pools", "buffers", "allocations", "managed", "pinned", "events"):
        _declare_objects(spec, kind)
    for kind, reason in _NO_SPEC.items():
        if objects := spec.memory.objects(kind):
            total = rounded(sum(each.size for each in objects))
            spec.notes.append(f"not in this spec: {len(objects)} of {total} in all: {reason}")


def _declare_chunks(spec: ProcessSpec, groups: Iterable[list[Memory]]) -> None:
    for members in groups:
        first = members[0]
        if first.imported or first.kind != "chunks":
            continue
        fields: dict[str, Any] = {"size": exact(first.size)}
        if handles := list(first.details.get("handles", ())):
            fields["handles"] = handles[0] if len(handles) == 1 else handles
        fields |= {flag: True for flag in PROPERTY_FLAGS if first.details.get(flag) is True}
        spec.declare("chunks", members, fields)


def _declare_objects(spec: ProcessSpec, kind: str) -> None:
    """Declare the objects of a kind that are no chunks, equal ones together."""
    found: dict[str, tuple[list[Memory], dict[str, Any]]] = {}
    for each in spec.memory.objects(kind):
        fields = None if each.imported else _fields(spec, each)
        if fields is not None:
            key = repr((fields, id(each) in spec.exported, source_of(each.call), kind == "pools" and id(each)))
            found.setdefault(key, ([], fields))[0].append(each)
    for members, fields in found.values():
        spec.declare(kind, members, fields)


def _fields(spec: ProcessSpec, memory: Memory) -> dict[str, Any] | None:
    """Fields of an entry besides its location and count; None for an object that a spec has no use for."""
    details, size = memory.details, {"size": exact(memory.size)}
    match memory.kind:
        case "buffers":
            return size
        case "events":
            return {"device": memory.location} if id(memory) in spec.exported else None
        case "pinned":
            fields = size | ({"write_combined": True} if details.get("write_combined") else {})
            return fields | ({"accessed_by": details["gpu"]} if details["gpu"] != "gpu0" else {})
        case "managed":
            chosen = {
                key: details[key] for key in ("prefer", "prefetch", "accessed_by", "read_mostly") if details.get(key)
            }
            return size | chosen | ({"attach": details["attach"]} if details["attach"] != "global" else {})
        case "pools":
            return _pool_fields(memory)
        case _:
            pool = spec.places.get(id(memory.pool))
            return {"pool": pool.entry.name, **size} if pool else None


def _pool_fields(pool: Memory) -> dict[str, Any]:
    fields: dict[str, Any] = {"location": pool.location}
    if handles := list(pool.details.get("handles", ())):
        fields["handles"] = handles[0]
    for key in ("max_size", "release_threshold"):
        if 0 < pool.details.get(key, 0) < 1 << 47:
            fields[key] = exact(pool.details[key])
    fields |= {key: False for key in pool.details if key.startswith("reuse_") and pool.details[key] == 0}
    if users := pool.details.get("accessed_by"):
        fields["accessed_by"] = list(users)
    return fields


# Exports, and imports of them


def exporters(processes: Sequence[ProcessMemory]) -> dict[int, Exported]:
    """Return the export of each import, by the identity of the imported object.

    A digest of the handle is exact. A descriptor has another number in each process: its export is that of an object of
    the same size that the process has not imported yet, the first of each exporter, and of the exporter that made a
    descriptor last.
    """
    imports: list[tuple[int, Memory]] = []
    for index, process in enumerate(processes):
        every = [*process.chunks(), *(each for kind in NOUNS for each in process.objects(kind) if kind != "chunks")]
        own = sorted((each for each in every if each.imported), key=lambda each: each.call.number)
        imports += [(index, each) for each in own]
    exports = [each for process in processes for each in process.exports]
    found = paired(imports, exports)
    return {id(memory): each for (_, memory), each in zip(imports, found, strict=True) if each}


def _imports(spec: ProcessSpec) -> list[Memory]:
    """Imports of a process: chunks in the order of their mappings, then all others."""
    mapped = [each.chunk for group in spec.groups for element in group.mapped for each in element]
    others = [each for kind in NOUNS if kind != "chunks" for each in spec.memory.objects(kind)]
    every = {id(each): each for each in (*mapped, *spec.memory.chunks(), *others) if each.imported}
    return [each for each in every.values() if each.kind not in ("pools", "multicast")]


def declare_imports(spec: ProcessSpec, owners: Mapping[int, ProcessSpec], pairs: Mapping[int, Exported]) -> None:
    """Declare imports: one for consecutive elements of an entry of the exporter."""
    runs: list[list[tuple[Memory, Place | None, str]]] = []
    for each in _imports(spec):
        exported = pairs.get(id(each))
        owner = owners.get(id(exported.memory)) if exported else None
        place = owner.places[id(exported.memory)] if exported and owner else None
        if runs and _follows(runs[-1][-1][0], runs[-1][-1][1], each, place):
            runs[-1].append((each, place, exported.via if exported else ""))
        else:
            runs.append([(each, place, exported.via if exported else "")])
    for run in runs:
        members = [each for each, _, _ in run]
        first = run[0][1]
        fields: dict[str, Any]
        if first:
            owner = owners[id(first.entry.members[first.index])]
            fields = {"from": f"{owner.name}.{_export(owner, first, len(run), run[0][2])}"}
        else:
            fields = _outside(spec, members)
        pool = members[0].pool
        if pool and pool.details.get("accessed_by"):
            fields["accessed_by"] = list(pool.details["accessed_by"])
        name = spec.name_for(first.entry.name if first else NOUNS[members[0].kind])
        spec.add("imports", name, fields)
        entry = DraftEntry(name, members)
        spec.places |= {id(each): Place(entry, index) for index, each in enumerate(members)}


def _follows(before: Memory, last: Place | None, memory: Memory, place: Place | None) -> bool:
    """Return whether an import continues the one before it: the next element, or one more of the same from outside."""
    if last and place:
        return place.entry is last.entry and place.index == last.index + 1
    return last is place and (before.kind, before.size, before.location) == (memory.kind, memory.size, memory.location)


def _outside(spec: ProcessSpec, members: Sequence[Memory]) -> dict[str, Any]:
    """Fields of an import whose exporter the record does not have."""
    first, name = members[0], NOUNS[members[0].kind]
    fields: dict[str, Any] = {"from": f"{OUTSIDE}/{name}"}
    if first.kind == "events":
        return fields | {"device": first.location}
    fields |= {"via": "ipc"} if first.kind == "buffers" else {}
    fields["pool" if first.kind == "allocations" else "location"] = first.location or "gpu0"
    fields["size"] = exact(first.size) if first.size else "2MiB"
    if not first.size or not first.location:
        spec.notes.append(f"the exporter of {name!r} is not in the record: its size and location are assumed")
    return fields | ({"count": len(members)} if len(members) > 1 else {})


def _export(owner: ProcessSpec, first: Place, count: int, via: str) -> str:
    """Name of the export of some elements of an entry, which is declared when it is first used."""
    key = (first.entry.name, first.index, count, via)
    if key not in owner.exports:
        whole = count == len(first.entry.members)
        wanted = first.entry.name if whole else f"{first.entry.name}-{first.index}"
        owner.exports[key] = unused(set(owner.exports.values()), wanted, f"{wanted}-{via}", f"{wanted}-{count}")
        noun = NOUNS[first.entry.members[0].kind]
        owner.add("exports", owner.exports[key], {noun: first.entry.reference(first.index, count), "via": via})
    return owner.exports[key]


def declare_exports(spec: ProcessSpec) -> None:
    """Declare exports that no process of the record imports, each of a whole entry."""
    declared = {(entry, via) for entry, _, _, via in spec.exports}
    for each in spec.memory.exports:
        place = spec.places.get(id(each.memory))
        if place and not each.memory.imported and (place.entry.name, each.via) not in declared:
            declared.add((place.entry.name, each.via))
            _export(spec, Place(place.entry, 0), len(place.entry.members), each.via)
