"""Names in a diagram: marks of memory, sources of imports, and locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from memtopo.driver.types import Location
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group, Origin
from memtopo.kinds.exports.groups import ExportGroup

LONGEST_CYCLE = 16
"""Locations after which a round-robin order may begin again, at most, to be recognised as one."""


class Marks:
    """The marks of the memory of a layout: the same for the same chunks in all of its processes.

    Entries that one span covers share the mark of the first of them.
    """

    def __init__(self, members: Mapping[str, Geometry]) -> None:
        self._members = members
        self._shared: dict[str, str] = {}

    def of(self, process: str, group: Group) -> str:
        """The mark of an entry's memory in a process; of an import from a sibling, the mark that it has there."""
        own = self._own(process, group)
        return self._shared.get(own, own)

    def join(self, process: str, groups: Iterable[Group]) -> str:
        """One mark for several entries, except those that have another one already."""
        first, *more = groups
        own = self._own(process, first)
        mark = self._shared.setdefault(own, own)
        for group in more:
            self._shared.setdefault(self._own(process, group), mark)
        return mark

    def _own(self, process: str, group: Group) -> str:
        if group.origin and group.origin.siblings:
            process = group.origin.holders[0]
            group = self._members[process].of(ExportGroup)[group.origin.export].group
        return own_mark(process, group.name)


def own_mark(process: str, name: str) -> str:
    """The mark of an entry that shares it with no other: `server: w`."""
    return f"{process_entry(process)}: {name}" if process else name


def process_entry(process: str) -> str:
    """The entry of the spec that declares a process: `reader` of `reader.3`."""
    return process.partition(".")[0]


def source(origin: Origin | None) -> str:
    """The source of an import as the spec writes it, empty for what is created here."""
    if origin is None:
        return ""
    holder = origin.holders[0]
    return origin.text(process_entry(holder) if origin.siblings else holder)


def cycle(locations: Sequence[Location]) -> tuple[Location, ...]:
    """The shortest sequence that the locations repeat, empty if there is none."""
    for length in range(1, min(LONGEST_CYCLE, len(locations)) + 1):
        if all(location == locations[index % length] for index, location in enumerate(locations)):
            return tuple(locations[:length])
    return ()


def is_regular(locations: Sequence[Location]) -> bool:
    """True if the locations repeat a cycle, or are different ones; a drawing of them by their order is exact then."""
    found = cycle(locations) or locations
    return len({*found}) == len(found) or 2 * len(found) <= len(locations)


def regular_lengths(locations: Sequence[Location]) -> Iterator[int]:
    """Lengths of the parts that repeat a cycle each, from the first location on."""
    start = 0
    while start < len(locations):
        yield (length := _regular_length(locations, start))
        start += length


def _regular_length(locations: Sequence[Location], start: int) -> int:
    best = 1
    for length in range(1, LONGEST_CYCLE + 1):
        stop = start + length
        while stop < len(locations) and locations[stop] == locations[stop - length]:
            stop += 1
        if stop - start >= 2 * length:
            best = max(best, stop - start)
        if best >= 2 * LONGEST_CYCLE:
            break
    return best


def location_names(locations: Sequence[Location]) -> tuple[str, ...]:
    """The locations of one round-robin cycle; without a cycle, each location once."""
    return tuple(map(str, cycle(locations) or dict.fromkeys(locations)))
