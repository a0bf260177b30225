"""What has to hold of chunks that a holder lends, apart from the code: their processes, their bytes, and their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memtopo.api.attachment import Attached
from memtopo.api.imports import entry_names
from memtopo.kinds.elastic import ELASTIC_POOLS
from memtopo.kinds.layout import Layout
from memtopo.sharing.client import Client
from tests.story.layouts import POOL, Pool
from tests.story.world import Actor, Broken, World

Chunk = tuple[int, int]
"""Number of a chunk in its holder, and the epoch of its bytes."""


@dataclass(slots=True)
class Sealed:
    """Chunk under a key: its memory, its epoch, and the number of its bytes, if it is known.

    It is not `certain` since a request to seal it, or no longer, has not been answered.
    """

    memory: str
    epoch: int
    number: int | None
    certain: bool = False


@dataclass(slots=True)
class Owner:
    """Process that was lent a chunk, and the connection that is its lease."""

    actor: Actor
    client: Client

    @property
    def leases(self) -> bool:
        """True while its lease cannot have ended."""
        return self.actor.alive and not self.actor.dying and not self.client.gone()


@dataclass(slots=True)
class LentMemory:
    """Model of what is lent. Each method raises `Broken` for what must not be."""

    world: World
    owners: dict[str, Owner] = field(default_factory=dict)
    """Processes by the memory that they were lent, and have not begun to give back."""
    seals: dict[str, list[Sealed]] = field(default_factory=dict)
    wild: set[str] = field(default_factory=set)
    """Memory that a process has written whose lease may have ended."""
    epochs: dict[Chunk, int] = field(default_factory=dict)
    """Latest epoch in which a chunk was lent, by process and number."""
    forgotten: int = 0
    """Number of the times at which nothing was sealed any more."""
    pool: Pool | None = None
    quota: int = 0
    """Quota of a client when the holder was seen last."""
    counts: Mapping[int, int] = field(default_factory=dict)
    """Chunks of each client when the holder was seen last, by the process."""

    def borrowed(self, owner: Owner, chunk: Chunk, memory: str, *, adopted: bool) -> None:
        """Remember that a process was lent a chunk: nobody else has it, and nothing in it is sealed."""
        who, (number, epoch) = f"{owner.actor.name} was lent chunk {chunk[0]}", chunk
        self.claim(owner, memory)
        if adopted or not owner.leases:  # it may have read the answer long after its lease had ended
            return
        if keys := [key for key, each in self._sealed() if each.memory == memory and each.certain]:
            raise Broken(f"{who}, which is sealed under {keys[0]}")
        latest = self.epochs.get((owner.client.pid, number), 0)
        if epoch <= latest:
            raise Broken(f"{who} in epoch {epoch}, and it was lent in epoch {latest} before")
        self.epochs[owner.client.pid, number] = epoch

    def claim(self, owner: Owner, memory: str) -> None:
        """Require that nobody else has memory that a process has."""
        other = self.owners.get(memory)
        if other and other.actor is not owner.actor and other.leases and owner.leases:
            raise Broken(f"{owner.actor.name} and {other.actor.name} were lent the same chunk")
        if owner.leases:
            self.owners[memory] = owner

    def let_go(self, actor: Actor, memory: Iterable[str]) -> None:
        """Remember that a process begins to give memory back."""
        for each in tuple(memory):
            if (owner := self.owners.get(each)) and owner.actor is actor:
                del self.owners[each]

    def wrote(self, memory: str, *, leased: bool) -> None:
        """Remember that memory was written, by a process that has its lease or not."""
        if leased:
            self.wild.discard(memory)
        else:
            self.wild.add(memory)

    def sealing(self, key: str, chunks: Iterable[Sealed]) -> None:
        """Remember that chunks may be under a key from now on."""
        self.seals.setdefault(key, []).extend(chunks)

    def refused(self, chunks: Collection[Sealed]) -> None:
        """Remember that chunks are under no key, since the request was refused, or was to seal them no longer."""
        for key, every in tuple(self.seals.items()):
            self.seals[key] = [each for each in every if not any(each is other for other in chunks)]
            if not self.seals[key]:
                del self.seals[key]

    def certain(self, key: str) -> list[Sealed]:
        """Return what is sealed under a key for certain."""
        return [each for each in self.seals.get(key, ()) if each.certain]

    def under_key(self, memory: Collection[str]) -> list[Sealed]:
        """Return what is sealed in some memory."""
        return [each for _, each in self._sealed() if each.memory in memory]

    def require_own(self, actor: Actor, key: str, before: Sequence[Sealed]) -> None:
        """Require that no other process has what was sealed under a key before a process has sealed under it."""
        now = [each for each in self.certain(key) if any(each is other for other in before)]
        owners = [owner for each in now if (owner := self.owners.get(each.memory))]
        if others := [each.actor.name for each in owners if each.actor is not actor and each.leases]:
            raise Broken(f"{actor.name} has sealed under {key}, which {others[0]} has")

    def require_unknown(self, key: str, before: Sequence[Sealed]) -> None:
        """Require that a key is unknown to the holder since nothing is sealed under it for certain."""
        now = self.certain(key)
        if lost := [each for each in before if any(each is other for other in now)]:
            raise Broken(f"nothing is sealed under {key}, and {len(lost)} chunks were")

    def adopted(self, who: str, key: str, found: list[Sealed], before: Sequence[Sealed]) -> None:
        """Require that what a process has adopted is what was sealed under a key, in its order."""
        now = self.seals.get(key, [])
        known = {each.memory: each for each in (*before, *now)}
        memory = [each.memory for each in found]
        wanted = [each.memory for each in now if each.certain and any(each is other for other in before)]
        if [each for each in memory if each in wanted] != wanted or not {*memory} <= known.keys():
            raise Broken(f"{who} {memory} under {key}, and sealed are {wanted}")
        for each in found:
            was, each.certain = known[each.memory], True
            if each.epoch != was.epoch:
                raise Broken(f"{who} a chunk under {key} of epoch {each.epoch}, sealed in {was.epoch}")
            if was.number is not None and each.number != was.number and each.memory not in self.wild:
                raise Broken(f"{who} bytes {each.number} under {key}, and sealed were {was.number}")
        self.seals[key] = found

    def begin(self, pool: Pool | None) -> None:
        """Follow a new holder."""
        self.forget()
        self.pool, self.counts, self.quota = pool, {}, 0

    def forget(self) -> None:
        """Forget what is sealed, since its memory is gone."""
        self.seals, self.forgotten = {}, self.forgotten + 1

    def follow(self, pool: Pool | None, *, made: bool) -> None:
        """Follow a change of the holder to another pool, or one that was rolled back."""
        if made and not (self.pool and self.pool.stays(pool)):
            self.forget()
        for _, each in self._sealed() if not made else ():
            each.certain = False
        self.pool = pool

    def observe(self, held: Any) -> None:
        """Require that the holder leases each chunk to the process that has it, and no more of them than it may."""
        pool, leases, terms = held_pool(held), leases_of(held), held.shape.lends_in(held.conductor.state)
        if pool is None or terms is None:
            self.counts = {}
            if leases:
                raise Broken(f"the holder lends {sorted(leases)} of a pool that is gone")
            return
        self._require_limits(leases, len(pool), terms)
        self._require_had(leases, held.actor.pid)
        for memory, number in pool.items():
            owner, lease = self.owners.get(memory), leases.get(number)
            if not owner or owner.client.pid != held.actor.pid or not owner.leases:
                continue
            if lease is None or lease.client is None or lease.client.peer.pid != owner.actor.pid:
                raise Broken(f"{owner.actor.name} has chunk {number}, and the holder has {lease} for it")

    def _require_limits(self, leases: Mapping[int, Any], created: int, terms: Pool) -> None:
        if max(created, len(leases)) > terms.most:
            raise Broken(f"{created} chunks exist and {len(leases)} are lent, of at most {terms.most}")
        counts: dict[int, int] = {}
        for each in leases.values():
            if each.client:
                counts[each.client.id] = counts.get(each.client.id, 0) + 1
        quota = max(terms.quota, self.quota)
        for client, count in counts.items():
            if count > max(quota, self.counts.get(client, 0)):
                raise Broken(f"client {client} has {count} chunks of its quota of {quota}")
        self.counts, self.quota = counts, terms.quota

    def _require_had(self, leases: Mapping[int, Any], holder: int) -> None:
        """Require that processes which do nothing now have what the holder leases to them.

        A holder whose answer waits for room learns of the end of its connection later.
        """
        if self.world.now < self.world.crowded_until:
            return
        for actor in self.world.actors.values():
            borrower: Any = getattr(actor.program, "borrower", None)
            client = actor.program.attached._lease.client if borrower and actor.program.attached else None
            if actor.doing or not client or client.pid != holder or not Owner(actor, client).leases:
                continue
            own = (each for each in leases.values() if each.client and each.client.peer.pid == actor.pid)
            if forgotten := {(each.number, each.epoch) for each in own} - borrower.has.keys():
                raise Broken(f"the holder leases {sorted(forgotten)} to {actor.name}, which has {sorted(borrower.has)}")

    def require_leases(self, held: Any, engines: Iterable[tuple[Actor, Attached]]) -> None:
        """Require that the holder leases what processes have, and nothing to others."""
        leased: dict[int, set[Chunk]] = {}
        for each in leases_of(held).values():
            if each.client:
                leased.setdefault(each.client.peer.pid, set()).add((each.number, each.epoch))
        for actor, attached in engines:
            client = attached._lease.client
            if client and client.pid == held.actor.pid and not client.gone():
                has, of = {*lent_chunks(attached)}, leased.pop(actor.pid, set())
                if has != of:
                    raise Broken(f"{actor.name} has {sorted(has)}, and the holder leases {sorted(of)} to it")
        if leased:
            raise Broken(f"the holder leases {leased} to processes that have ended")

    def free_keys(self, quota: int) -> list[str]:
        """Return the keys of what no process has, and one process may have."""
        return [
            key
            for key, every in sorted(self.seals.items())
            if len(every) <= quota and self.certain(key) and not any(self._has_owner(each.memory) for each in every)
        ]

    def _has_owner(self, memory: str) -> bool:
        owner = self.owners.get(memory)
        return bool(owner and owner.leases)

    def _sealed(self) -> Iterator[tuple[str, Sealed]]:
        return ((key, each) for key, every in self.seals.items() for each in every)


def lending_export(attached: Attached) -> str:
    """Return the name of the export of lent chunks that a process imports; empty if it imports none."""
    return next((name for name, offer in attached.exports.items() if offer.lends), "")


def lent_entry(attached: Attached) -> str:
    """Return the name of the lent chunks in a process that imports them."""
    return entry_names(attached.exports).get(lending_export(attached), "")


def lent_chunks(attached: Attached) -> Mapping[Chunk, str]:
    """Return the memory of the chunks that a process was lent, mapped or not."""
    opened: Any = attached._session._opened
    return _memory_of(attached._session.layout, lent_entry(attached), opened.simulator)


def held_pool(held: Any) -> Mapping[str, int] | None:
    """Return the numbers of the chunks that a holder has by their memory; None if it has no pool now."""
    run, driver = held.parts.get(held.shape.lender, (None, None))
    if run is None or driver is None or POOL not in run.execution.layout.of(ELASTIC_POOLS):
        return None
    return {memory: number for (number, _), memory in _memory_of(run.execution.layout, POOL, driver.simulator).items()}


def leases_of(held: Any) -> Mapping[int, Any]:
    """Return the leases of a holder by the numbers of the chunks."""
    found = held.loop._responder.lending._exports.get(held.shape.public(POOL)) if held.loop else None
    return found.every if found else {}


def lent_beyond(held: Any) -> int:
    """Return the number of chunks that a holder has since they are lent or sealed, or could not be released."""
    least = held.shape.pool.least if held.shape.pool else 0
    numbers = {number for number in leases_of(held) if number >= least}
    keeps_chunks = any(each.keeps_chunks for each in (held.actor, *held.actor.children))
    if keeps_chunks and (pool := held_pool(held)):
        numbers.update(number for number in pool.values() if number >= least)
    return len(numbers)


def _memory_of(layout: Layout, name: str, simulator: Any) -> dict[Chunk, str]:
    pool = layout.of(ELASTIC_POOLS).get(name)
    found: dict[Chunk, str] = {}
    for each in tuple(pool.created.values()) if pool else ():
        physical = simulator.chunks.get(layout.chunks[each.label]).physical
        found[each.number, each.epoch] = physical.tag.nonce if physical.tag else f"own {layout.chunks[each.label]}"
    return found
