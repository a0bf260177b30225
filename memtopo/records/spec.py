"""A spec that describes the memory at a moment of a record.

Equal objects become one entry with a count: ranges by what is mapped in them, chunks by the ranges that they are mapped
in. What a spec cannot say is a comment with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from memtopo.common.units import exact, rounded
from memtopo.language import Document, read_text
from memtopo.records.live import ProcessMemory
from memtopo.records.objects import Exported, Mapped, Memory, Reservation
from memtopo.records.record import PEAK, Moment, moment, read_record
from memtopo.records.sources import source_of

OUTSIDE = "outside"
"""Holder of imports whose exporter the record does not have."""

OWN = re.compile(rb"# Memory of a program, ")
"""How such specs begin."""

_NOUNS = {
    "chunks": "chunk", "buffers": "buffer", "managed": "managed", "pinned": "staging", "pools": "pool",
    "allocations": "allocation", "events": "event",
}  # fmt: skip
_FLAGS = ("rdma", "compressible")
_WORD = re.compile(r"[^A-Za-z0-9_-]+")
_NO_SPEC = {
    "registered": "registered memory of the program itself, for which a spec names the file that it is in",
    "external": "memory of another API, for which a spec names the producer",
    "multicast": "a multicast object, whose team and binds the record does not tell apart",
}


@dataclass(slots=True)
class _Entry:
    """An entry of a section: its objects, in order, and its fields."""

    name: str
    members: list[Memory]
    fields: dict[str, Any]

    def reference(self, first: int = 0, count: int | None = None) -> str:
        """Name of the entry, of one of its elements, or of several."""
        whole = len(self.members)
        if count is None or count == whole:
            return self.name
        return f"{self.name}.{first}" if count == 1 else f"{self.name}.{first}:{first + count}"


@dataclass(frozen=True, slots=True)
class _Place:
    """An object as an element of an entry."""

    entry: _Entry
    index: int


@dataclass(frozen=True, slots=True)
class _Slice:
    """Consecutive elements of an entry that are mapped one after another, or `repeats` mappings of one element."""

    place: _Place
    count: int
    offset: int
    size: int
    repeats: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class _RangeGroup:
    """Equal ranges: the same size, the same memory at the same offsets, and the same access."""

    name: str
    ranges: tuple[Reservation, ...]
    mapped: tuple[tuple[Mapped, ...], ...]


@dataclass
class _ProcessSpec:
    """The sections of one process."""

    memory: ProcessMemory
    name: str
    exported: set[int]
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[int, _Place] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exports: dict[tuple[str, int, int, str], str] = field(default_factory=dict)
    groups: tuple[_RangeGroup, ...] = ()
    _names: Counter[str] = field(default_factory=Counter)

    def name_for(self, wanted: str) -> str:
        """A name of the process that no entry has yet."""
        plain = _WORD.sub("-", wanted).strip("-") or "entry"
        plain = plain if plain[0].isalpha() else f"m{plain}"
        self._names[plain] += 1
        return plain if self._names[plain] == 1 else self.name_for(f"{plain}-{self._names[plain]}")

    def add(self, section: str, name: str, fields: Any) -> None:
        """Add an entry to a section."""
        self.sections.setdefault(section, {})[name] = fields

    def declare(self, kind: str, members: Sequence[Memory], fields: Mapping[str, Any]) -> None:
        """Declare equal objects in one entry, or one for each location if these do not alternate."""
        locations = [each.location for each in members]
        if located := _alternating(locations):
            name = self.name_for(source_of(members[0].call) or _NOUNS[kind])
            place = {"location": located[0] if len(located) == 1 else located}
            every = place | dict(fields) if kind in ("chunks", "buffers") else dict(fields)
            if len(members) > 1:
                every["count"] = len(members)
            self.add(kind, name, every)
            entry = _Entry(name, list(members), every)
            self.places |= {id(each): _Place(entry, index) for index, each in enumerate(members)}
            return
        for location in dict.fromkeys(locations):
            self.declare(kind, [each for each in members if each.location == location], fields)


def document(path: str, at: str | None = None) -> Document:
    """Return the spec of the memory in a record, by default at its peak. Raises `UsageError`."""
    text = spec_of(moment(read_record([path]), at or PEAK), Path(path).name.partition(".")[0])
    return read_text(text.encode(), path)


def spec_of(found: Moment, name: str) -> str:
    """Return the text of a spec of the memory at a moment."""
    every = [each for each in found.processes if each.weight[0] or each.weight[3]]
    exported = {id(each.memory) for process in every for each in process.exports}
    labels = _labels(every)
    specs = [_ProcessSpec(each, label, exported) for each, label in zip(every, labels, strict=True)]
    for each in specs:
        each.groups = tuple(_range_groups(each))
        _declare_memory(each)
    owners = {id(memory): each for each in specs for memory in _owned(each)}
    pairs = exporters(every)
    for each in specs:
        _declare_imports(each, owners, pairs)
    for each in specs:
        _declare_exports(each)
    slept = {process.name: process.slept for process in found.end}
    for each in specs:
        _declare_mappings(each)
        _declare_states(each, slept.get(each.memory.name, set()))
    return "\n".join(_text(found, name, specs)) + "\n"


def _alternating(locations: Sequence[str]) -> list[str]:
    """Return the locations that alternate, one if all are the same; none if they do neither."""
    distinct = list(dict.fromkeys(locations))
    repeated = all(each == distinct[index % len(distinct)] for index, each in enumerate(locations))
    return distinct if repeated else []


def _labels(processes: Sequence[ProcessMemory]) -> list[str]:
    """Names of processes: those of the record, `p0`, `p1` and so on for process ids."""
    found = [_WORD.sub("-", each.name).strip("-") for each in processes]
    return [label if label[:1].isalpha() else f"p{index}" for index, label in enumerate(found)]


# Ranges and memory


def _mapped_in(process: ProcessMemory, held: Reservation) -> tuple[Mapped, ...]:
    return tuple(process.mapped.within(held.address, held.size))


def _range_groups(spec: _ProcessSpec) -> Iterator[_RangeGroup]:
    """Yield the ranges of a process in groups of equal ones, in the order of their reservation."""
    found: dict[Hashable, list[Reservation]] = {}
    for held in sorted(spec.memory.ranges, key=lambda each: each.call.number):
        content = tuple(
            (each.address - held.address, each.size, _properties(each.chunk), each.chunk.location, _access(each))
            for each in _mapped_in(spec.memory, held)
        )
        found.setdefault((held.size, held.alignment, content), []).append(held)
    for ranges in found.values():
        name = spec.name_for(source_of(ranges[0].call) or "range")
        yield _RangeGroup(name, tuple(ranges), tuple(_mapped_in(spec.memory, each) for each in ranges))


def _access(mapped: Mapped) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(mapped.grants.items()))


def _properties(chunk: Memory) -> Hashable:
    """All that chunks of one entry have in common besides their location."""
    flags = tuple(chunk.details.get(flag, False) is True for flag in _FLAGS)
    handles = chunk.details.get("handles", ())
    return chunk.imported, chunk.kind, chunk.size, tuple(handles), flags


def _declare_memory(spec: _ProcessSpec) -> None:
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
    others: dict[Hashable, list[Memory]] = {}
    for each in spec.memory.chunks():
        if id(each) not in seen:
            others.setdefault((_properties(each), each.location), []).append(each)
    _declare_chunks(spec, others.values())
    for kind in ("pools", "buffers", "allocations", "managed", "pinned", "events"):
        _declare_objects(spec, kind)
    for kind, reason in _NO_SPEC.items():
        objects = spec.memory.objects(kind) or [each for each in spec.memory.chunks() if each.kind == kind]
        if objects:
            total = rounded(sum(each.size for each in objects))
            spec.notes.append(f"not in this spec: {len(objects)} of {total} in all: {reason}")


def _declare_chunks(spec: _ProcessSpec, groups: Iterable[list[Memory]]) -> None:
    for members in groups:
        first = members[0]
        if first.imported or first.kind != "chunks":
            continue
        fields: dict[str, Any] = {"size": exact(first.size)}
        if handles := list(first.details.get("handles", ())):
            fields["handles"] = handles[0] if len(handles) == 1 else handles
        fields |= {flag: True for flag in _FLAGS if first.details.get(flag) is True}
        spec.declare("chunks", members, fields)


def _declare_objects(spec: _ProcessSpec, kind: str) -> None:
    """Declare the objects of a kind that are no chunks, equal ones together."""
    found: dict[str, tuple[list[Memory], dict[str, Any]]] = {}
    for each in spec.memory.objects(kind):
        fields = None if each.imported else _fields(spec, each)
        if fields is not None:
            key = repr((fields, id(each) in spec.exported, source_of(each.call), kind == "pools" and id(each)))
            found.setdefault(key, ([], fields))[0].append(each)
    for members, fields in found.values():
        spec.declare(kind, members, fields)


def _fields(spec: _ProcessSpec, memory: Memory) -> dict[str, Any] | None:
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
            chosen = {key: details[key] for key in ("prefer", "prefetch", "accessed_by", "read_mostly") if key in details}
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
    if pool.details.get("accessed_by"):
        fields["accessed_by"] = list(dict.fromkeys(pool.details["accessed_by"]))
    return fields


# What processes share


def _owned(spec: _ProcessSpec) -> list[Memory]:
    return [place.entry.members[place.index] for place in spec.places.values()]


def exporters(processes: Sequence[ProcessMemory]) -> dict[int, Exported]:
    """Return the export of each import, by the identity of the imported object.

    A digest of the handle is exact. A descriptor has another number in each process: its export is that of an object of
    the same size that the process has not imported yet, the first of each exporter, and of the exporter that made a
    descriptor last.
    """
    every = [each for process in processes for each in process.exports]
    by_token = {each.token: each for each in every if each.token}
    found: dict[int, Exported] = {}
    for process in processes:
        taken: set[int] = set()
        imports = [*process.chunks(), *(each for kind in _NOUNS for each in process.objects(kind) if kind != "chunks")]
        for each in sorted((each for each in imports if each.imported), key=lambda each: each.call.number):
            exported = by_token.get(each.token) if each.token else _likely(each, every, taken)
            if exported:
                found[id(each)] = exported
                taken.add(id(exported.memory))
    return found


def _likely(memory: Memory, exports: Sequence[Exported], taken: set[int]) -> Exported | None:
    """Return the most likely export of an object that was imported by a descriptor."""
    first: dict[str, Exported] = {}
    latest: dict[int, float] = {}
    for each in exports:
        same = each.memory.kind == memory.kind and memory.size in (0, each.memory.size)
        known = not memory.location or memory.location == each.memory.location
        if not same or not known or each.time > memory.time:
            continue
        latest[id(each.memory)] = each.time
        if id(each.memory) not in taken:
            first.setdefault(each.memory.process, each)
    return max(first.values(), key=lambda each: latest[id(each.memory)], default=None)


def _imports(spec: _ProcessSpec) -> list[Memory]:
    """Imports of a process: chunks in the order of their mappings, then all others."""
    mapped = [each.chunk for group in spec.groups for element in group.mapped for each in element]
    others = [each for kind in _NOUNS if kind != "chunks" for each in spec.memory.objects(kind)]
    every = {id(each): each for each in (*mapped, *spec.memory.chunks(), *others) if each.imported}
    return [each for each in every.values() if each.kind not in ("pools", "multicast")]


def _declare_imports(
    spec: _ProcessSpec, owners: Mapping[int, _ProcessSpec], pairs: Mapping[int, Exported]
) -> None:
    """Declare imports: one for consecutive elements of an entry of the exporter."""
    runs: list[list[tuple[Memory, _Place | None, str]]] = []
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
            fields["accessed_by"] = list(dict.fromkeys(pool.details["accessed_by"]))
        name = spec.name_for(first.entry.name if first else _NOUNS[members[0].kind])
        spec.add("imports", name, fields)
        entry = _Entry(name, members, fields)
        spec.places |= {id(each): _Place(entry, index) for index, each in enumerate(members)}


def _follows(before: Memory, last: _Place | None, memory: Memory, place: _Place | None) -> bool:
    """Return whether an import continues the one before it: the next element, or one more of the same from outside."""
    if last and place:
        return place.entry is last.entry and place.index == last.index + 1
    return last is place and (before.kind, before.size, before.location) == (memory.kind, memory.size, memory.location)


def _outside(spec: _ProcessSpec, members: Sequence[Memory]) -> dict[str, Any]:
    """Fields of an import whose exporter the record does not have."""
    first, name = members[0], _NOUNS[members[0].kind]
    fields: dict[str, Any] = {"from": f"{OUTSIDE}/{name}"}
    if first.kind == "events":
        return fields | {"device": first.location}
    fields |= {"via": "ipc"} if first.kind == "buffers" else {}
    fields["pool" if first.kind == "allocations" else "location"] = first.location or "gpu0"
    fields["size"] = exact(first.size) if first.size else "2MiB"
    if not first.size or not first.location:
        spec.notes.append(f"the exporter of {name!r} is not in the record: its size and location are assumed")
    return fields | ({"count": len(members)} if len(members) > 1 else {})


def _export(owner: _ProcessSpec, first: _Place, count: int, via: str) -> str:
    """Name of the export of some elements of an entry, which is declared when it is first used."""
    key = (first.entry.name, first.index, count, via)
    if key not in owner.exports:
        whole = count == len(first.entry.members)
        wanted = first.entry.name if whole else f"{first.entry.name}-{first.index}"
        taken = set(owner.exports.values())
        owner.exports[key] = next(each for each in (wanted, f"{wanted}-{via}", f"{wanted}-{count}") if each not in taken)
        noun = _NOUNS[first.entry.members[0].kind]
        owner.add("exports", owner.exports[key], {noun: first.entry.reference(first.index, count), "via": via})
    return owner.exports[key]


def _declare_exports(spec: _ProcessSpec) -> None:
    """Declare exports that no process of the record imports, each of a whole entry."""
    declared = {(entry, via) for entry, _, _, via in spec.exports}
    for each in spec.memory.exports:
        place = spec.places.get(id(each.memory))
        if place and not each.memory.imported and (place.entry.name, each.via) not in declared:
            declared.add((place.entry.name, each.via))
            _export(spec, _Place(place.entry, 0), len(place.entry.members), each.via)


# Mappings and access


def _declare_mappings(spec: _ProcessSpec) -> None:
    for group in spec.groups:
        slices = [_slices(spec, held, mapped) for held, mapped in zip(group.ranges, group.mapped, strict=True)]
        if not any(slices):
            continue
        if len(slices) == 1:
            spec.add("map", group.name, _references(slices[0]))
        elif each := _each(slices):
            spec.add("map", group.name, each)
        else:
            for index, found in enumerate(slices):
                spec.add("map", f"{group.name}.{index}", _references(found))
        if access := _access_of(group.ranges[0], group.mapped[0]):
            spec.add("access", group.name, access)


def _slices(spec: _ProcessSpec, held: Reservation, mapped: Sequence[Mapped]) -> list[_Slice]:
    """Mappings of a range as slices of entries, in the order of their offsets."""
    found: list[_Slice] = []
    for each in mapped:
        place = spec.places.get(id(each.chunk))
        if place is None:
            continue
        offset, last = each.address - held.address, found[-1] if found else None
        if last and last.end == offset and last.place.entry is place.entry:
            repeats = place.index == last.place.index and (last.repeats or last.count == 1)
            if repeats or (not last.repeats and place.index == last.place.index + last.count):
                found[-1] = _Slice(last.place, last.count + 1, last.offset, last.size + each.size, repeats)
                continue
        found.append(_Slice(place, 1, offset, each.size))
    return found


def _references(slices: Sequence[_Slice]) -> list[Any]:
    """The list of a range under `map`."""
    found: list[Any] = []
    end = 0
    for each in slices:
        entry, index = each.place.entry, each.place.index
        text = entry.reference(index, 1 if each.repeats else each.count)
        fields = ({"offset": exact(each.offset)} if each.offset != end else {}) | (
            {"each": each.count} if each.repeats else {}
        )
        found.append({"chunk": text, **fields} if fields else text)
        end = each.end
    return found


def _each(elements: Sequence[Sequence[_Slice]]) -> list[Any]:
    """The list of all elements of a counted range, if each has the next chunks of the same entries; else none."""
    first = elements[0]
    found: list[Any] = []
    end = 0
    for index, each in enumerate(first):
        own = [slices[index] for slices in elements if index < len(slices)]
        entry, count = each.place.entry, each.count
        alike = len(own) == len(elements) and all(
            (one.place.entry, one.count, one.repeats) == (entry, count, each.repeats) for one in own
        )
        in_turn = [one.place.index for one in own] == [number * count for number in range(len(own))]
        shared = len(entry.members) == 1 and (each.repeats or count == 1)
        used_once = sum(one.place.entry is entry for one in first) == 1
        if not alike or not used_once or not (shared or (in_turn and not each.repeats)):
            return []
        fields = {"offset": exact(each.offset)} if each.offset != end else {}
        found.append({"chunk": entry.name, **fields, "each": count})
        end = each.end
    return found if all(len(slices) == len(first) for slices in elements) else []


def _access_of(held: Reservation, mapped: Sequence[Mapped]) -> Any:
    """Access to a range: for all of it, or for parts."""
    parts = [(access, list(run)) for access, run in groupby(mapped, key=_access)]
    if len({access for access, _ in parts}) == 1:
        return dict(parts[0][0])
    found = []
    for access, run in parts:
        if access:
            size = run[-1].address + run[-1].size - run[0].address
            found.append({"offset": exact(run[0].address - held.address), "size": exact(size), "grant": dict(access)})
    return found


def _declare_states(spec: _ProcessSpec, slept: set[int]) -> None:
    """Declare the state in which ranges were without memory, if the record has one."""
    dropped = [
        group.name
        for group in spec.groups
        if any(group.mapped) and all(each.call.number in slept for each in group.ranges)
    ]
    if dropped:
        spec.add("states", "asleep", {"drop": dropped})
        spec.notes.append("asleep: memory was unmapped there and mapped again; the record does not tell if it was kept")


# Text


def _text(found: Moment, name: str, specs: Sequence[_ProcessSpec]) -> Iterator[str]:
    yield f"# Memory of a program, {found.name}: after {found.calls:,} of {len(found.record.calls):,} recorded calls."
    for each in specs:
        for note in each.notes:
            yield f"# {f'{each.name}: ' if len(specs) > 1 else ''}{note}"
    yield "memtopo: 1"
    yield f"name: {_WORD.sub('-', name).strip('-') or 'recorded'}"
    if len(specs) == 1:
        yield from _sections(specs[0], "")
    elif specs:
        yield from ["", "processes:"]
        for each in specs:
            yield f"  {each.name}:"
            yield from _sections(each, "    ")


_ORDER = (
    "ranges", "chunks", "buffers", "pools", "allocations", "managed", "pinned", "events", "imports", "map", "access",
    "exports", "states",
)  # fmt: skip


def _sections(spec: _ProcessSpec, indent: str) -> Iterator[str]:
    for section in _ORDER:
        if entries := spec.sections.get(section):
            if not indent:
                yield ""
            yield f"{indent}{section}:"
            yield from (f"{indent}  {name}: {_flow(fields)}" for name, fields in entries.items())


def _flow(value: Any) -> str:
    """A value of a spec in flow style."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(_flow, value))}]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
