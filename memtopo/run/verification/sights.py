"""Who sees what by kernels, over all processes: who fills a chunk, in which order, and who verifies it after each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memtopo.driver.types import Access, Location, LocationKind, gpu
from memtopo.run.contents import Contents, Identity


class Sight(NamedTuple):
    """A chunk as one GPU of one process sees it through one mapping: in a range or as a buffer, and where in that."""

    process: str
    device: int
    label: str
    offset: int


Sights = dict[Identity, list[Sight]]


def sights(seen: Mapping[str, Sequence[Contents]], access: Access) -> Sights:
    """Everyone who has this access to what the run created, its creator first."""
    created: Sights = {}
    imported: Sights = {}
    for process, contents in seen.items():
        for each in contents:
            if each.ours:
                found = created if each.identity.owner == process else imported
                found.setdefault(each.identity, []).extend(_of(process, each, access))
    for identity, more in imported.items():
        created.setdefault(identity, []).extend(more)
    return {identity: each for identity, each in created.items() if each}


def writers(able: Iterable[Sight]) -> list[Sight]:
    """One for each GPU of each process, and one for each mapping, in order."""
    gpus: set[tuple[str, int]] = set()
    places: set[tuple[str, str, int]] = set()
    found: list[Sight] = []
    later: list[Sight] = []
    for sight in able:
        place = sight.process, sight.label, sight.offset
        if (sight.process, sight.device) not in gpus:
            gpus.add((sight.process, sight.device))
            places.add(place)
            found.append(sight)
        else:
            later.append(sight)
    for sight in later:
        place = sight.process, sight.label, sight.offset
        if place not in places:
            places.add(place)
            found.append(sight)
    return found


def readers(able: Sequence[Sight], writer: Sight, turn: int, owner: str, location: Location) -> Sequence[Sight]:
    """Everyone after the first fill; after a later one the chunk's own GPU, and one more that is not the writer."""
    if not turn:
        return able
    home = next((each for each in able if (each.process, gpu(each.device)) == (owner, location)), None)
    home = home or (able[0] if able else None)
    others = [each for each in able if each not in (writer, home)]
    other = [others[turn % len(others)]] if others else []
    return [*([home] if home else []), *other]


def _of(process: str, chunk: Contents, access: Access) -> Iterator[Sight]:
    for label, offset, grants in chunk.seen_at:
        for grant in grants:
            if grant.location.kind is LocationKind.GPU and grant.access & access == access:
                yield Sight(process, grant.location.id, label, offset)
