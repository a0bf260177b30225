"""Proof of every byte, by kernels: each writer fills a chunk in a turn of its own, and others verify it.

A writer is a GPU of a process, through one mapping: each GPU that may write is one, and so is each mapping that may be
written. All chunks of a turn are filled before any is verified, so that no two of them can be in one place. After its
first fill a chunk is verified by everyone who may read it, through every mapping; after each later one by its own GPU
and by one other. After the last turn, what was not filled in it must still be as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from memtopo.driver.kernels import Area, Verified
from memtopo.driver.types import Access, Location, LocationKind, gpu
from memtopo.kinds.layout import current
from memtopo.plans.report import Finding, Rate
from memtopo.run.contents import Contents, Identity
from memtopo.run.verification.verifier import Events, Scene

BATCH = 8 << 30
"""Bytes that are filled or verified before anybody can interrupt: some milliseconds."""

MANY = 4096
"""Areas, likewise."""

_ASPECT = "every byte"
_WELL = Finding(_ASPECT, "", "", "")


class _Share(NamedTuple):
    """What this process fills or verifies of one chunk in a turn."""

    chunk: Contents
    sight: Sight
    area: Area

    @property
    def kind(self) -> tuple[int, Location]:
        """Which GPU does it, to memory of which location: what is measured together."""
        return self.sight.device, self.chunk.location


class Whole:
    """Every byte of each chunk and buffer."""

    doing = "proof by bytes"
    aspect = _ASPECT
    verbs = "fill", "verify"

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._events = Events(scene)
        self._readers = sights(scene.seen, Access.R)
        self._writers = {identity: writers(able) for identity, able in sights(scene.seen, Access.RW).items()}
        self._rounds: list[list[Identity]] = []
        for identity, order in self._writers.items():
            self._rounds.extend([] for _ in range(len(order) - len(self._rounds)))
            for turn in range(len(order)):
                self._rounds[turn].append(identity)
        self._at = {(label, offset): each for each in scene.mine for label, offset, _ in each.seen_at}
        self.turns = max(len(self._events.turns), len(self._rounds))
        self._taken: dict[tuple[str, int, Location], tuple[int, float]] = {}
        """Bytes and seconds, by what was done, by which GPU, to memory of which location."""

    @cached_property
    def volume(self) -> int:
        """Bytes that this process fills and verifies in all turns."""
        return sum(
            self._at[sight.label, sight.offset].size
            for turn in range(self.turns)
            for sight in (*self._filling(turn), *self._verifying(turn))
        )

    def write(self, turn: int) -> int:
        """Fill what is this process's to fill, and wait until it has arrived. Raises `DriverError`."""
        shares = [self._share(sight, turn) for sight in self._filling(turn)]
        for batch in _batches(shares):
            self._scene.stop()
            with current(self._scene.driver, self._scene.layout.contexts[batch[0].sight.device]):
                start = time.perf_counter()
                self._scene.driver.fill([share.area for share in batch])
                self._scene.driver.ctx_synchronize()
                self._done("fill", batch, time.perf_counter() - start)
        self._events.record(turn)
        return len(shares)

    def read(self, turn: int) -> Iterator[Finding]:
        """Verify what everybody filled in this turn. Raises `DriverError`."""
        yield from self._events.wait(turn)
        for batch in _batches(self._share(sight, turn) for sight in self._verifying(turn)):
            self._scene.stop()
            # Findings are not told within: whoever takes them must not do so with a context that is not its own.
            wrong = self._verify(batch)
            for number, share in enumerate(batch):
                yield _finding(share, wrong[number], self._writer(share, turn)) if number in wrong else _WELL

    def expected(self, turn: int) -> int:
        """How many chunks are verified, each counted for each mapping and GPU."""
        return sum(1 for _ in self._verifying(turn))

    def unseen(self) -> Iterator[tuple[int, str]]:
        """Mappings that no GPU verifies."""
        me = self._scene.process
        for chunk in self._scene.mine:
            able = [each for each in self._readers.get(chunk.identity, ()) if each.process == me]
            if not chunk.ours:
                yield (len(chunk.seen_at), "somebody else's memory is not written")
            elif chunk.identity not in self._writers:
                yield (len(chunk.seen_at), "no gpu may write them")
            elif missed := len(chunk.seen_at) - len({each[2:] for each in able if each[2:] in _places(chunk)}):
                yield (missed, "no gpu may read them there")

    def rates(self) -> Iterator[Rate]:
        """How fast each GPU filled and verified memory of each location."""
        for (verb, device, location), (size, seconds) in self._taken.items():
            yield Rate(verb, f"gpu{device}", str(location), size, seconds)

    def _filling(self, turn: int) -> Iterator[Sight]:
        for identity in self._round(turn):
            sight = self._writers[identity][turn]
            if sight.process == self._scene.process:
                yield sight

    def _verifying(self, turn: int) -> Iterator[Sight]:
        for identity in self._round(turn):
            able, writer = self._readers[identity], self._writers[identity][turn]
            for sight in readers(able, writer, turn, identity.owner, self._location(able)):
                if sight.process == self._scene.process:
                    yield sight
        if 0 < turn == self.turns - 1:
            yield from self._untouched(turn)

    def _untouched(self, turn: int) -> Iterator[Sight]:
        """Those who see what was filled in earlier turns alone, and must have been spared by the later ones."""
        for identity, order in self._writers.items():
            if len(order) <= turn:
                able = self._readers[identity]
                home = readers(able, order[-1], turn, identity.owner, self._location(able))[0]
                if home.process == self._scene.process:
                    yield home

    def _round(self, turn: int) -> Sequence[Identity]:
        return self._rounds[turn] if turn < len(self._rounds) else ()

    def _location(self, able: Sequence[Sight]) -> Location:
        """Where a chunk is, told by any of those who see it."""
        first = able[0]
        return self._places[first.process, first.label, first.offset]

    @cached_property
    def _places(self) -> dict[tuple[str, str, int], Location]:
        return {
            (process, label, offset): each.location
            for process, contents in self._scene.seen.items()
            for each in contents
            for label, offset, _ in each.seen_at
        }

    def _share(self, sight: Sight, turn: int) -> _Share:
        chunk = self._at[sight.label, sight.offset]
        address = self._scene.layout.address(sight.label) + sight.offset
        filled = min(turn, len(self._writers[chunk.identity]) - 1)
        return _Share(chunk, sight, Area(address, chunk.size, _seed(self._scene.seed, chunk.identity, filled)))

    def _verify(self, batch: Sequence[_Share]) -> dict[int, Verified]:
        """Which chunks of a batch differ: each by itself, and what came and went as it was seen first."""
        driver = self._scene.driver
        with current(driver, self._scene.layout.contexts[batch[0].sight.device]):
            start = time.perf_counter()
            found = driver.verify([share.area for share in batch])
            self._done("verify", batch, time.perf_counter() - start)
            if not found.mismatches:
                return {}
            alone = {number: driver.verify([share.area]) for number, share in enumerate(batch)}
        return {number: each for number, each in alone.items() if each.mismatches} or {found.area: found}

    def _done(self, what: str, batch: Sequence[_Share], seconds: float) -> None:
        size = sum(share.area.size for share in batch)
        self._scene.advance(size)
        if not self._scene.simulated:
            key = what, *batch[0].kind
            before = self._taken.get(key, (0, 0.0))
            self._taken[key] = before[0] + size, before[1] + seconds

    def _writer(self, share: _Share, turn: int) -> Sight:
        order = self._writers[share.chunk.identity]
        return order[min(turn, len(order) - 1)]


def _seed(run: int, identity: Identity, turn: int) -> int:
    """What tells a chunk's bytes from those of every other chunk, turn and run."""
    told = f"{run}/{identity.owner}/{identity.label}/{turn}"
    return int.from_bytes(blake2b(told.encode(), digest_size=8).digest(), "little")


def _batches(shares: Iterable[_Share]) -> Iterator[list[_Share]]:
    """What one GPU does to memory of one location, some at a time."""
    for _, alike in groupby(sorted(shares, key=lambda share: share.kind), key=lambda share: share.kind):
        batch: list[_Share] = []
        size = 0
        for share in alike:
            if batch and (size + share.area.size > BATCH or len(batch) == MANY):
                yield batch
                batch, size = [], 0
            batch.append(share)
            size += share.area.size
        yield batch


def _finding(share: _Share, found: Verified, writer: Sight) -> Finding:
    """What differs: chunk and offset in it, range, GPU; who wrote it is told beside what was wanted."""
    _, device, label, offset = share.sight
    subject = f"{share.chunk.chunk} + {found.offset:#x} in {label} at {offset + found.offset:#x} by gpu{device}"
    by = f"gpu{writer.device}" + (f" of {writer.process}" if writer.process else "")
    units = "word" if found.mismatches == 1 else "words"
    wanted, seen = f"{found.wanted:#018x}, stored by {by}", f"{found.seen:#018x}, {found.mismatches:,} {units} differ"
    return Finding(_ASPECT, subject, wanted, seen, share.chunk.path)


def _places(chunk: Contents) -> set[tuple[str, int]]:
    return {(label, offset) for label, offset, _ in chunk.seen_at}


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
