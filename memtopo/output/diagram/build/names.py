"""Which word marks which memory: the same for the same chunks, whichever process of a layout shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memtopo.driver.types import Location
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Imported, Origin


class Marks:
    """The marks of a layout. Entries that one piece stands for share the mark that the first of them had."""

    def __init__(self, members: Mapping[str, Geometry]) -> None:
        self._members = members
        self._shared: dict[str, str] = {}

    def of(self, process: str, run: Imported) -> str:
        """The mark of what one entry declares or imports, in the process of that label."""
        own = self._own(process, run)
        return self._shared.get(own, own)

    def join(self, process: str, runs: Iterable[Imported]) -> str:
        """One mark for all of some entries, but those that have another already."""
        first, *more = runs
        own = self._own(process, first)
        mark = self._shared.setdefault(own, own)
        for run in more:
            self._shared.setdefault(self._own(process, run), mark)
        return mark

    def _own(self, process: str, run: Imported) -> str:
        if run.origin and run.origin.siblings:
            process = run.origin.holders[0]
            run = self._members[process].exports[run.origin.export].run
        return named(process, run.name)


def named(process: str, name: str) -> str:
    """The mark of what no other entry shares."""
    return f"{entry(process)}: {name}" if process else name


def entry(process: str) -> str:
    """The entry of the spec that a process is of: `reader` of `reader.3`."""
    return process.partition(".")[0]


def source(origin: Origin | None) -> str:
    """Where something comes from, as the spec writes it; nothing where it is made here."""
    if origin is None:
        return ""
    holder = origin.holders[0]
    return origin.text(entry(holder) if origin.siblings else holder)


LONGEST_TURN = 16
"""Things after which the order of places may begin again, at most, for it to be told as one in turn."""


def repeated(places: Sequence[Location]) -> tuple[Location, ...]:
    """The shortest order that the places repeat; nothing where they follow none."""
    for length in range(1, min(LONGEST_TURN, len(places)) + 1):
        if all(place == places[index % length] for index, place in enumerate(places)):
            return tuple(places[:length])
    return ()


def turn(places: Sequence[Location]) -> tuple[str, ...]:
    """The places in the order that they repeat; where they follow none, each of them once."""
    return tuple(map(str, repeated(places) or dict.fromkeys(places)))
