"""A spec that describes the memory at a moment of a record.

Equal objects become one entry with a count: ranges by what is mapped in them, chunks by the ranges that they are mapped
in. What a spec cannot say is a comment with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from memtopo.common.units import exact
from memtopo.language import Document, read_text
from memtopo.records import Moment, moment_of
from memtopo.records.calls import Mapped, Reservation
from memtopo.records.entries import (
    Place,
    ProcessSpec,
    access_words,
    declare_exports,
    declare_imports,
    declare_memory,
    exporters,
    range_groups,
    unused,
    word,
)

OWN = b"# Memory of a program, "
"""How such specs begin."""


def document(path: str, at: str | None = None) -> Document:
    """Return the spec of the memory in a record, by default at its peak. Raises `UsageError`."""
    text = spec_of(moment_of(path, at), Path(path).name.partition(".")[0])
    return read_text(text.encode(), f"{path} (as a spec)")


def spec_of(found: Moment, name: str) -> str:
    """Return the text of a spec of the memory at a moment."""
    every = [each for each in found.processes if each.weight[0] or each.weight[3]]
    exported = {id(each.memory) for process in every for each in process.exports}
    specs: list[ProcessSpec] = []
    for index, process in enumerate(every):
        label = word(process.name)  # of a process id, there is no name
        taken = [each.name for each in specs]
        specs.append(ProcessSpec(process, unused(taken, label if label[:1].isalpha() else f"p{index}"), exported))
    for each in specs:
        each.groups = tuple(range_groups(each))
        declare_memory(each)
    owners = {id(memory): each for each in specs for memory in each.members()}
    pairs = exporters(every)
    for each in specs:
        declare_imports(each, owners, pairs)
    for each in specs:
        declare_exports(each)
    slept = {id(process.head): process.slept for process in found.end}
    for each in specs:
        _declare_mappings(each)
        _declare_states(each, slept[id(each.memory.head)])
    return "\n".join(_text(found, name, specs)) + "\n"


class _Slice(Struct, frozen=True):
    """Consecutive elements of an entry that are mapped one after another, or `repeats` mappings of one element."""

    place: Place
    count: int
    offset: int
    size: int
    repeats: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.size


def _declare_mappings(spec: ProcessSpec) -> None:
    """Declare what is mapped in ranges, and the access to them."""
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


def _slices(spec: ProcessSpec, held: Reservation, mapped: Sequence[Mapped]) -> list[_Slice]:
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
    found: list[Any] = []
    end = 0
    for own in zip(*elements, strict=True):  # equal ranges have as many slices where those before are equal
        first = own[0]
        entry, count = first.place.entry, first.count
        equal = all((one.place.entry, one.count, one.repeats) == (entry, count, first.repeats) for one in own)
        in_turn = [one.place.index for one in own] == [number * count for number in range(len(own))]
        shared = len(entry.members) == 1 and (first.repeats or count == 1)
        used_once = sum(one.place.entry is entry for one in elements[0]) == 1
        if not equal or not used_once or not (shared or (in_turn and not first.repeats)):
            return []
        fields = {"offset": exact(first.offset)} if first.offset != end else {}
        found.append({"chunk": entry.name, **fields, "each": count})
        end = first.end
    return found


def _access_of(held: Reservation, mapped: Sequence[Mapped]) -> Any:
    """Access to a range: for all of it, or for parts."""
    parts = [(access, list(run)) for access, run in groupby(mapped, key=access_words)]
    if len({access for access, _ in parts}) == 1:
        return dict(parts[0][0])
    found = []
    for access, run in parts:
        if access:
            size = run[-1].address + run[-1].size - run[0].address
            found.append({"offset": exact(run[0].address - held.address), "size": exact(size), "grant": dict(access)})
    return found


def _declare_states(spec: ProcessSpec, slept: set[int]) -> None:
    """Declare the state in which ranges were without memory, if the record has one."""
    dropped = [
        group.name
        for group in spec.groups
        if any(group.mapped) and all(each.call.number in slept for each in group.ranges)
    ]
    if dropped:
        spec.add("states", "asleep", {"drop": dropped})
        spec.notes.append(
            "asleep: memory was unmapped there and mapped again; the record does not show whether its bytes were kept"
        )


def _text(found: Moment, name: str, specs: Sequence[ProcessSpec]) -> Iterator[str]:
    yield f"# Memory of a program, {found.name}: after {found.calls:,} of {len(found.record.calls):,} recorded calls."
    for each in specs:
        if each.memory.name.isdecimal() and len(specs) > 1:
            yield f"# {each.name} is process {each.memory.name}."
        for note in each.notes:
            yield f"# {f'{each.name}: ' if len(specs) > 1 else ''}{note}"
    yield "memtopo: 1"
    yield f"name: {word(name) or 'recorded'}"
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


def _sections(spec: ProcessSpec, indent: str) -> Iterator[str]:
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
