"""Layouts of stories: a small family of specs, what each has in each state, and the machines for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from memtopo.drivers.sim.address_space import RESERVED
from memtopo.drivers.target import Target, recorded
from memtopo.language import Document, read_text
from memtopo.machine import CONTEXT_BYTES, Machine, load
from memtopo.session.composition import Composition
from tests.helpers.machines import invented

CHUNK = 2 << 20
NAME = "kv"
STATES = ("awake", "asleep", "half")
SCRATCH = "scratch"
"""Memory that no process imports, and that only the state awake has."""

BLOCK = "block"
CELL = "cell"
"""Allocation of a memory pool, and its export."""

TICK = "tick"
"""Event, and its export over ipc."""

POOL = "pool"
"""Elastic chunks that are lent, and their export."""

CACHE = "cache"
"""Elastic range in which they are mapped, of `ROOM` chunks."""

ROOM = 16

HEAP = "heap"
"""Heap of each of two processes that have joined."""

HEAP_SIZE = 16 * CHUNK
HEAP_USERS = ("a", "b")

COMMON = "common"
"""Range at the same address in all processes that have it."""


@dataclass(frozen=True, slots=True)
class Export:
    """An export of chunks: its number, its GPU, and whether a writer commits it; what a state does with its memory."""

    count: int
    gpu: int
    committed: bool = False
    asleep: str = "drop"
    half: str = "keep"

    def in_state(self, state: str) -> str:
        """Return what a state does with the memory: keep, drop or offload."""
        return "keep" if state == "awake" else self.asleep if state == "asleep" else self.half


@dataclass(frozen=True, slots=True)
class HeapTerms:
    """The heap of each process: its GPU, how many chunks it may have, and what a state does with its memory."""

    limit: int
    gpu: int = 0
    asleep: str = "offload"
    half: str = "keep"

    def in_state(self, state: str) -> str:
        """Return what a state does with the memory: keep, drop or offload."""
        return "keep" if state == "awake" else self.asleep if state == "asleep" else self.half


@dataclass(frozen=True, slots=True)
class Pool:
    """Elastic chunks that are lent: at least and at most so many exist, `quota` of them for one process.

    The states in `drops` have none.
    """

    least: int
    most: int
    quota: int
    gpu: int = 0
    drops: tuple[str, ...] = ("asleep",)

    def stays(self, other: Pool | None) -> bool:
        """Return whether a change to another pool keeps the chunks."""
        return other is not None and (self.least, self.gpu) == (other.least, other.gpu)


@dataclass(frozen=True, slots=True)
class Shape:
    """A spec of the family."""

    exports: tuple[tuple[str, Export], ...]
    block: bool = False
    """True with a buffer that is exported over ipc, whose context the holder keeps."""

    cell: bool = False
    """True with an allocation of a memory pool that is exported over fd."""

    tick: bool = False
    """True with an event that is exported over ipc, whose context the holder keeps."""

    split: bool = False
    """True for a layout of two processes: one has the pages, the other one imports them and has the rest."""

    pool: Pool | None = None
    """Chunks that are lent."""

    joined: bool = False
    """True if users have started the processes, which join the layout."""

    common: bool = False
    """True with two more processes, which have a range at the same address."""

    heap: HeapTerms | None = None
    """Heap of each of the first two processes, if they have joined."""

    @property
    def named(self) -> dict[str, Export]:
        """Exports by name."""
        return dict(self.exports)

    @property
    def published(self) -> dict[str, Export]:
        """Exports by the names that clients know."""
        return {self.public(name): each for name, each in self.exports}

    @property
    def lender(self) -> str:
        """Label of the process that has the chunks which are lent."""
        return "b" if self.split else ""

    def public(self, name: str) -> str:
        """Return the name of an export for clients."""
        return name if not self.split else f"a.{name}" if name == "page" else f"b.{name}"

    @property
    def text(self) -> str:
        """The spec, as JSON."""
        head = {"memtopo": 1, "name": NAME}
        if not self.split:
            return json.dumps(head | self._part(self.named, self.pool))
        exports = self.named
        page = exports.pop("page", None)
        pages, rest = self._part({"page": page} if page else {}, None), self._part(exports, self.pool, scratch=False)
        if page:
            rest["imports"], rest["map"]["seen"] = {"seen": {"from": "a.page"}}, ["seen"]
            rest["ranges"]["seen"], rest["access"]["seen"] = {"size": f"{2 * page.count}MiB"}, {f"gpu{page.gpu}": "r"}
        more = {"c": {"count": 2, "ranges": {COMMON: {"size": "2MiB", "same_address": True}}}} if self.common else {}
        return json.dumps(head | {"processes": {"a": pages, "b": rest, **more}})

    def _part(self, exports: dict[str, Export], pool: Pool | None, *, scratch: bool = True) -> dict[str, Any]:
        """Sections of a process that has some exports, and chunks that are lent."""
        found: dict[str, Any] = {"ranges": {}, "chunks": {}, "map": {}, "access": {}, "exports": {}, "states": {}}
        if scratch:
            found["ranges"][SCRATCH] = {"size": "2MiB"}
            found["chunks"][SCRATCH] = {"location": "gpu0", "size": "2MiB"}
            found["map"][SCRATCH], found["access"][SCRATCH] = [SCRATCH], {"gpu0": "rw"}
        if self.block:
            found["buffers"] = {BLOCK: {"location": "gpu0", "size": "2MiB"}}
            found["exports"][BLOCK] = {"buffer": BLOCK, "via": "ipc"}
        if self.cell:
            found["pools"] = {"slab": {"location": "gpu0", "max_size": "64MiB", "handles": "fd"}}
            found["allocations"] = {CELL: {"pool": "slab", "size": "2MiB"}}
            found["exports"][CELL] = {"allocation": CELL, "via": "fd"}
        if self.tick:
            found["events"] = {TICK: {"device": "gpu0"}}
            found["exports"][TICK] = {"event": TICK, "via": "ipc"}
        for name, each in exports.items():
            found["ranges"][f"{name}-range"] = {"size": f"{2 * each.count}MiB"}
            found["chunks"][name] = {"location": f"gpu{each.gpu}", "size": "2MiB", "count": each.count, "handles": "fd"}
            found["map"][f"{name}-range"] = [name]
            found["access"][f"{name}-range"] = {f"gpu{each.gpu}": "rw"}
            found["exports"][name] = {"chunk": name, "via": "fd"} | ({"commit": "required"} if each.committed else {})
        if self.heap:
            found["heaps"] = {
                HEAP: {"location": f"gpu{self.heap.gpu}", "size": "32MiB", "limit": f"{2 * self.heap.limit}MiB"}
            }
            found["access"][HEAP] = {f"gpu{self.heap.gpu}": "rw"}
        if pool:
            count = {"min": pool.least, "max": pool.most}
            found["ranges"][CACHE] = {"size": f"{2 * ROOM}MiB", "elastic": {"chunks": [POOL]}}
            found["chunks"][POOL] = {"location": f"gpu{pool.gpu}", "size": "2MiB", "count": count, "handles": "fd"}
            found["access"][CACHE] = {f"gpu{pool.gpu}": "rw"}
            found["exports"][POOL] = {"chunk": POOL, "via": "fd", "quota": pool.quota}
        kept: dict[str, Any] = {f"{name}-range": each for name, each in exports.items()}
        kept |= {HEAP: self.heap} if self.heap else {}
        for state in STATES[1:]:
            acts = {name: each.in_state(state) for name, each in kept.items()}
            offload = {name: "pinned" if name == HEAP else "host:0" for name, act in acts.items() if act == "offload"}
            drop = [SCRATCH] * scratch + [name for name, act in acts.items() if act == "drop"]
            drop += [CACHE] if pool and state in pool.drops else []
            if offload or drop:
                found["states"][state] = {key: each for key, each in (("drop", drop), ("offload", offload)) if each}
        return found

    def lends_in(self, state: str) -> Pool | None:
        """Return the pool, if a state has it."""
        return self.pool if self.pool and state not in self.pool.drops else None

    def bytes_at(self, gpu: int, state: str, lent: int = 0) -> int:
        """Bytes that the layout has on a GPU in a state, with so many chunks beyond those of the pool that stay."""
        pool = self.lends_in(state)
        return self._own_bytes_at(gpu, state) + (CHUNK * (pool.least + lent) if pool and pool.gpu == gpu else 0)

    def _own_bytes_at(self, gpu: int, state: str) -> int:
        own = (each for each in self.named.values() if each.gpu == gpu)
        exported = sum(each.count * CHUNK for each in own if each.in_state(state) == "keep")
        if gpu:
            return exported
        kept = CHUNK * self.block + RESERVED * self.cell + CONTEXT_BYTES * (self.block or self.tick)
        return exported + CHUNK * (state == "awake") + kept


def drawn_machine(random: Random) -> Machine:
    """Return a machine of 1 to 8 GPUs."""
    return machine_of(random.choice((1, 1, 2, 2, 4, 8)))


@cache
def machine_of(gpus: int) -> Machine:
    """Return a recorded machine, or an invented one for a number of GPUs that none has."""
    known = {1: "h100x1", 2: "h200x2", 4: "h200x4"}
    return load(known[gpus]) if gpus in known else invented(gpus)


def drawn_shape(random: Random, gpus: int) -> Shape:
    """Return a spec for a machine."""
    weights = Export(random.randint(1, 2), 0, committed=True, asleep=random.choice(("offload", "drop")))
    page = Export(random.randint(1, 3), random.randrange(gpus), half=random.choice(("drop", "keep")))
    split = random.random() < 0.3
    block, cell, tick = (not split and random.random() < 0.3 for _ in range(3))
    pool = drawn_pool(random, gpus) if random.random() < 0.7 else None
    joined, common = split and random.random() < 0.5, split and random.random() < 0.3
    heap = drawn_heap(random, gpus) if joined and random.random() < 0.8 else None
    return Shape((("w", weights), ("page", page)), block, cell, tick, split, pool, joined, common, heap)


def drawn_heap(random: Random, gpus: int) -> HeapTerms:
    """Return a heap of each process, whose limit is at times all its addresses."""
    asleep, half = random.choice(("offload", "offload", "drop")), random.choice(("keep", "drop", "offload"))
    return HeapTerms(random.choice((2, 5, 16)), random.randrange(gpus), asleep, half)


def drawn_pool(random: Random, gpus: int) -> Pool:
    """Return chunks that are lent, of which all processes together can have more than one, and less than they want."""
    least, quota = random.choice((0, 0, 1, 2)), random.choice((2, 4, 4, 8))
    drops = random.choice(((), ("asleep",), ("asleep",), ("asleep", "half")))
    return Pool(least, random.choice((3, 5, 8)), quota, random.randrange(gpus), drops)


def changed_pool(random: Random, pool: Pool | None, gpus: int) -> Pool | None:
    """Return what a pool may be changed to."""
    match random.randrange(6) if pool else 5:
        case 0 | 1 if pool:
            return replace(pool, most=max(pool.least, 1, pool.most + random.choice((-3, -1, 1, 4))))
        case 2 if pool:
            return replace(pool, quota=random.choice((2, 4, 8)))
        case 3 if pool:
            return replace(pool, drops=() if pool.drops else ("asleep",))
        case 4:
            return None
    return drawn_pool(random, gpus)


def changed_shape(random: Random, shape: Shape, gpus: int) -> Shape:
    """Return a spec to which a layout of another one may be changed."""
    if random.random() < 0.5:
        return _changed_beside(random, shape, gpus)
    exports = shape.named
    match random.randrange(5):
        case 0:
            page = exports.get("page")
            exports["page"] = replace(page, count=1 + page.count % 3) if page else Export(1, random.randrange(gpus))
        case 1:
            if exports.pop("next", None) is None:
                exports["next"] = Export(1, random.randrange(gpus), committed=True, asleep="keep")
        case 2:
            exports["w"] = replace(exports["w"], count=3 - exports["w"].count)
        case 3:
            exports["page"] = Export(1, random.randrange(gpus))
        case _:
            if "next" in exports or exports.pop("page", None) is None:
                exports["page"] = Export(2, 0)
    return replace(shape, exports=tuple(exports.items()))


def _changed_beside(random: Random, shape: Shape, gpus: int) -> Shape:
    """Return a spec with something else than chunks of ranges, or without it."""
    match random.randrange(4) if not shape.split else 3:
        case 0:
            return replace(shape, block=not shape.block)
        case 1:
            return replace(shape, cell=not shape.cell)
        case 2:
            return replace(shape, tick=not shape.tick)
        case _ if shape.joined and random.random() < 0.4:
            return replace(shape, heap=_changed_heap(random, shape.heap, gpus))
        case _:
            return replace(shape, pool=changed_pool(random, shape.pool, gpus))


def _changed_heap(random: Random, heap: HeapTerms | None, gpus: int) -> HeapTerms | None:
    """Return a heap with another limit, none, or a new one."""
    if heap is None:
        return drawn_heap(random, gpus)
    return None if random.random() < 0.3 else replace(heap, limit=random.choice((1, 2, 5, 16)))


@cache
def document_of(shape: Shape) -> Document:
    """Return the text of a spec as it is read from a file."""
    return read_text(shape.text.encode(), "kv.yaml")


@cache
def composition_of(shape: Shape, gpus: int) -> Composition:
    """Return a spec on a machine."""
    machine = machine_of(gpus)
    return Composition.of(document_of(shape), recorded(machine_name(gpus), machine))


def machine_name(gpus: int) -> str:
    """Return the name of the machine of a number of GPUs."""
    return f"story{gpus}"


def target_of(gpus: int, opener: Any) -> Target:
    """Return the machine as the target of a process, whose drivers a function opens."""
    return Target(machine_name(gpus), machine_of(gpus), simulated=True, _opener=opener)
