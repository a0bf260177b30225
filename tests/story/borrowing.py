"""What an engine does with the chunks that its holder lends: it maps, writes and seals them, and adopts sealed ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from memtopo.api.attachment import Attached
from memtopo.api.elastic import ElasticRange
from memtopo.api.imports import lent_ranges
from memtopo.common.errors import ExchangeError
from memtopo.kinds.layout import current
from tests.story.layouts import CHUNK, POOL, ROOM
from tests.story.lending import Chunk, Owner, Sealed, held_pool, lending_export, lent_chunks, lent_entry
from tests.story.oracle import STAMP, Oracle, context_of, number_of, simulator_of, stamp
from tests.story.world import Actor, Broken

VERBS = frozenset({"grow", "shrink", "trim", "stamp", "seal", "unseal", "adopt"})
"""Events of an engine that are methods of `Borrower`."""

ANSWERED = ("stale", "sealed", "unknown", "full", "absent", "changing", "releasing", "lease", "unread", "limit")
"""Codes of refusals by a holder, which has done nothing then."""


@dataclass(slots=True)
class Borrower:
    """Chunks that a process was lent: their memory, the number of the bytes in it, and the keys of sealed ones."""

    oracle: Oracle
    has: dict[Chunk, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def grow(self, actor: Actor, attached: Attached, count: int) -> None:
        """Map chunks one after another where there is room for them."""
        cache = self._cache(attached)
        with self.changing(actor, attached, ()):
            cache.map(_gap(cache, count), lent_entry(attached), count)

    def shrink(self, actor: Actor, attached: Attached, count: int, release: bool) -> None:
        """Unmap the last chunks, and give them back or keep them."""
        cache = self._cache(attached)
        mapped = cache.mappings[-count:]
        going = [_memory_at(attached, cache, each.offset) for each in mapped] if release else ()
        with self.changing(actor, attached, going), cache.batch() as batch:
            for each in mapped:
                batch.unmap(each.offset, each.size, release=release)

    def trim(self, actor: Actor, attached: Attached) -> None:
        """Give back what is not mapped."""
        cache = self._cache(attached)
        mapped = {_memory_at(attached, cache, each.offset) for each in cache.mappings}
        with self.changing(actor, attached, {*self.has.values()} - mapped):
            attached.chunks(lent_entry(attached)).trim()

    def stamp(self, actor: Actor, attached: Attached) -> None:
        """Write all that is mapped and not sealed."""
        cache, driver = self._cache(attached), attached._session.driver
        for each in cache.mappings:
            memory = _memory_at(attached, cache, each.offset)
            if memory in self.keys or memory not in self.has.values():
                continue
            number = self.oracle.new_content(actor, POOL)
            with current(driver, context_of(attached, lending_export(attached))):
                driver.memcpy_htod(cache.address + each.offset, stamp(number, 0))
                self.oracle.lent.wrote(memory, leased=_leased(attached))
                self.oracle.written = self.oracle.world.now
            self.numbers[memory] = number

    def look(self, actor: Actor, attached: Attached) -> None:
        """Compare what is mapped with what this process has written, or adopted."""
        if lending_export(attached) in attached.absent:
            return
        cache = self._cache(attached)
        for each in cache.mappings:
            memory = _memory_at(attached, cache, each.offset)
            if (expected := self.numbers.get(memory)) is None:
                continue
            found = self._read(attached, cache, each.offset)
            if not _leased(attached):
                return
            if found != expected and memory not in self.oracle.lent.wild:
                raise Broken(f"{actor.name} reads lent memory: bytes {found}, and it has written {expected}")

    def seal(self, actor: Actor, attached: Attached, key: str, count: int) -> None:
        """Seal the first chunks that are not sealed and follow one another, under a key."""
        cache, lent = self._cache(attached), self.oracle.lent
        if not (run := self._run(attached, cache, count)):
            return
        epochs, seals = {memory: epoch for (_, epoch), memory in self.has.items()}, list[Sealed]()
        for offset in run:
            memory = _memory_at(attached, cache, offset)
            seals.append(Sealed(memory, epochs[memory], self.numbers.get(memory)))
        before, certain = lent.forgotten, lent.certain(key)
        lent.sealing(key, seals)
        try:
            cache.seal(run[0], len(run) * CHUNK, key=key)
        except ExchangeError as error:
            if error.code in ANSWERED:
                lent.refused(seals)
            self._require_reasonable(actor, attached, error, [each.memory for each in seals])
            raise
        lent.require_own(actor, key, certain)
        for each in seals:
            each.certain = lent.forgotten == before
        self.keys |= {each.memory: key for each in seals}

    def unseal(self, actor: Actor, attached: Attached) -> None:
        """Seal the first chunk that is sealed no longer."""
        cache, lent = self._cache(attached), self.oracle.lent
        found = [(each.offset, _memory_at(attached, cache, each.offset)) for each in cache.mappings]
        if not (sealed := [each for each in found if each[1] in self.keys]):
            return
        (offset, memory), *_ = sealed
        seals = lent.under_key([memory])
        was = [each.certain for each in seals]
        for each in seals:
            each.certain = False
        try:
            cache.seal(offset, CHUNK, key=None)
        except ExchangeError as error:
            for each, certain in zip(seals, was, strict=True):
                each.certain = certain and error.code in ANSWERED
            self._require_reasonable(actor, attached, error, [memory])
            raise
        lent.refused(seals)
        del self.keys[memory]

    def adopt(self, actor: Actor, attached: Attached, key: str) -> None:
        """Map what another process has sealed under a key."""
        cache, lent = self._cache(attached), self.oracle.lent
        before, certain, forgotten, had = [*lent.seals.get(key, ())], lent.certain(key), lent.forgotten, {*self.has}
        first = _gap(cache, max(len(before), 1))
        try:
            with self.changing(actor, attached, (), adopts=True):
                labels = cache.adopt(first, key)
        except ExchangeError as error:
            if error.code == "unknown":
                lent.require_unknown(key, certain)
            raise
        chunks, found = {memory: chunk for chunk, memory in self.has.items() if chunk not in had}, list[Sealed]()
        self.keys |= dict.fromkeys(chunks, key)
        for index, _ in enumerate(labels):
            memory = _memory_at(attached, cache, first + index * CHUNK)
            found.append(Sealed(memory, chunks[memory][1], self._read(attached, cache, first + index * CHUNK)))
        if not _leased(attached):
            return
        if forgotten == lent.forgotten:
            lent.adopted(f"{actor.name} has adopted", key, found, before)
        self.numbers |= {each.memory: each.number for each in found if each.number is not None}

    @contextmanager
    def changing(
        self, actor: Actor, attached: Attached, going: Collection[str], *, adopts: bool = False
    ) -> Iterator[None]:
        """Follow what the code inside has done with the chunks, of which it may give some back."""
        self.oracle.lent.let_go(actor, going)
        try:
            yield
        finally:
            if not actor.dying:
                self._follow(actor, attached, adopts=adopts)

    def end(self, actor: Actor) -> None:
        """Forget everything, which is about to end."""
        self.oracle.lent.let_go(actor, self.has.values())
        self.has, self.numbers, self.keys = {}, {}, {}

    def _follow(self, actor: Actor, attached: Attached, *, adopts: bool) -> None:
        now, client, lent = dict(lent_chunks(attached)), attached._lease.client, self.oracle.lent
        for chunk, memory in self.has.items():
            if now.get(chunk) != memory:
                lent.let_go(actor, [memory])
                self.numbers.pop(memory, None)
                self.keys.pop(memory, None)
        before, self.has = self.has, now
        for chunk, memory in now.items() if client else ():
            assert client
            if chunk in before:
                lent.claim(Owner(actor, client), memory)
            else:
                lent.borrowed(Owner(actor, client), chunk, memory, adopted=adopts)

    def _require_reasonable(
        self, actor: Actor, attached: Attached, error: ExchangeError, chunks: Collection[str]
    ) -> None:
        """Require that the leases of chunks, by their memory, have not ended while the holder has all of it."""
        held = self.oracle.held
        if error.code != "stale" or not _leased(attached) or not held or not held.serves:
            return
        has = held_pool(held) or {}
        if all(each in has for each in chunks):  # a request for old and new ones is refused as a whole
            raise Broken(f"{actor.name} has {len(chunks)} chunks that are stale: {error.message}")

    def _cache(self, attached: Attached) -> ElasticRange:
        (name,) = lent_ranges(attached.exports)
        found = attached.range(name)
        assert isinstance(found, ElasticRange)
        return found

    def _run(self, attached: Attached, cache: ElasticRange, count: int) -> list[int]:
        """Offsets of the first chunks that are not sealed and follow one another."""
        found: list[int] = []
        for each in cache.mappings:
            sealed = _memory_at(attached, cache, each.offset) in self.keys
            if found and (sealed or each.offset != found[-1] + CHUNK or len(found) == count):
                break
            found += [] if sealed else [each.offset]
        return found

    def _read(self, attached: Attached, cache: ElasticRange, offset: int) -> int | None:
        driver = attached._session.driver
        with current(driver, context_of(attached, lending_export(attached))):
            self.oracle.checked += 1
            return number_of(driver.memcpy_dtoh(cache.address + offset, STAMP))


def _gap(cache: ElasticRange, count: int) -> int:
    """Offset of the first part without mappings that has room for some chunks; that after the last one if none has."""
    taken = {each.offset // CHUNK for each in cache.mappings}
    free = (first for first in range(ROOM - count + 1) if taken.isdisjoint(range(first, first + count)))
    return CHUNK * next(free, max(taken, default=-1) + 1)


def _memory_at(attached: Attached, cache: ElasticRange, offset: int) -> str:
    """Return what names the memory behind a mapping."""
    part = simulator_of(attached).mappings.find(cache.address + offset)
    if part is None:
        raise Broken(f"nothing is mapped at {offset} of {cache!r}")
    return part.physical.tag.nonce if part.physical.tag else f"own {part.chunk.handle}"


def _leased(attached: Attached) -> bool:
    """Return whether the lease of a process cannot have ended."""
    client = attached._lease.client
    return client is not None and not client.gone()
