"""Exports and imports of a spec that is made of a record: the export of each import, and the entries of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memtopo.common.units import exact
from memtopo.records.entries import NOUNS, DraftEntry, Place, ProcessSpec, unused
from memtopo.records.live import ProcessMemory
from memtopo.records.objects import Exported, Memory

OUTSIDE = "outside"
"""Holder of imports whose exporter the record does not have."""


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


def paired(imports: Iterable[tuple[int, Memory]], exports: Sequence[Exported]) -> Iterator[Exported | None]:
    """Yield the export of each object that a process, by index, has imported; None if the record does not have it."""
    by_token = {each.token: each for each in exports if each.token}
    taken: dict[int, set[int]] = defaultdict(set)
    for process, memory in imports:
        if not memory.imported:  # a chunk of its own, which the process has exported
            found = next((each for each in exports if each.memory is memory), None)
        elif memory.token:
            found = by_token.get(memory.token)
        else:
            others = [each for each in exports if each.via != "ipc" or each.memory.process != memory.process]
            found = _likely_export(memory, others, taken[process])
        if found:
            taken[process].add(id(found.memory))
        yield found


def _likely_export(memory: Memory, exports: Sequence[Exported], taken: set[int]) -> Exported | None:
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
    return max(
        first.values(),
        key=lambda each: (each.memory.process != memory.process, latest[id(each.memory)]),
        default=None,
    )


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
