"""Verification of every byte, by kernels: in each round one writer fills a chunk, and other GPUs verify it.

A writer is a GPU of a process through one mapping. Each GPU with write access is a writer of the chunk, and each
mapping with write access has one. All chunks of a round are filled before any is verified, so that no two of them can
share memory. After its first fill a chunk is verified by every GPU with read access, through every mapping; after each
later fill by its own GPU and one other. In the last round, chunks that were not filled in it must be unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import chain, groupby

from msgspec import Struct

from memtopo.driver.kernels import Area, Verified
from memtopo.driver.types import Access, Location, gpu
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import Identity, MappedMemory
from memtopo.plans.report import Rate
from memtopo.run.verification.verifier import EventVerification, MappedView, VerificationContext, Verifier, gpu_views

MAX_BATCH_BYTES = 8 << 30
"""Bytes filled or verified between two checks for a requested stop: some milliseconds."""

MAX_BATCH_AREAS = 4096
"""Areas filled or verified between two checks for a requested stop."""

_ASPECT = "every byte"
_EQUAL = Finding.equal(_ASPECT)

Views = dict[Identity, list[MappedView]]
"""Views of each chunk or allocation in all processes."""


class Task(Struct, frozen=True):
    """One area of memory to fill or verify by a GPU of this process."""

    chunk: MappedMemory
    view: MappedView
    area: Area

    @property
    def rate_key(self) -> tuple[int, Location]:
        """GPU, and location of the memory: the tasks with the same key are measured together."""
        return self.view.device, self.chunk.location


class FullVerifier(Verifier):
    """Every byte of each chunk and buffer."""

    action = "verification by bytes"
    aspect = _ASPECT
    verbs = "fill", "verify"

    def __init__(self, context: VerificationContext) -> None:
        self._context = context
        self._events = EventVerification(context)
        memory = {process: list(chain.from_iterable(own)) for process, own in context.memory.items()}
        self._readers = views(memory, Access.R)
        self._writers = {identity: writers(each) for identity, each in views(memory, Access.RW).items()}
        self.rounds = max([self._events.rounds, *map(len, self._writers.values())])
        self._filled: list[list[Identity]] = [[] for _ in range(self.rounds)]
        """Chunks that are filled in each round."""
        for identity, order in self._writers.items():
            for index in range(len(order)):
                self._filled[index].append(identity)
        self._at = {(label, offset): each for each in memory[context.process] for label, offset, _ in each.views}
        self._locations = {each.identity: each.location for own in memory.values() for each in own}
        self._measured: dict[tuple[str, int, Location], tuple[int, float]] = {}
        """Bytes and seconds, by verb, GPU, and location of the memory."""

    @cached_property
    def volume(self) -> int:
        """Bytes that this process fills and verifies in all rounds."""
        return sum(
            self._at[view.mapping].size
            for index in range(self.rounds)
            for view in (*self._to_fill(index), *self._to_verify(index))
        )

    def written(self, index: int) -> int:
        """Number of chunks that this process fills in a round."""
        return sum(1 for _ in self._to_fill(index))

    def write(self, index: int) -> None:
        """Fill the chunks that this process fills, and wait until that is complete. Raises `DriverError`."""
        tasks = [self._task(view, index) for view in self._to_fill(index)]
        for batch in batches(tasks):
            self._context.raise_if_stopped()
            with current(self._context.driver, self._context.layout.contexts[batch[0].view.device]):
                start = time.perf_counter()
                self._context.driver.fill([task.area for task in batch])
                self._context.driver.ctx_synchronize()
                self._measure("fill", batch, time.perf_counter() - start)
        self._events.record(index)

    def read(self, index: int) -> Iterator[Finding]:
        """Verify what all processes filled in a round. Raises `DriverError`."""
        yield from self._events.wait(index)
        for batch in batches(self._task(view, index) for view in self._to_verify(index)):
            self._context.raise_if_stopped()
            # Not yielded within: the code that takes the findings must not run in the device's context.
            wrong = self._verify(batch)
            for number, task in enumerate(batch):
                writer = self._writer(index, task.chunk.identity)
                yield _difference(task, wrong[number], writer) if number in wrong else _EQUAL

    def expected(self, index: int) -> int:
        """Number of chunks that are verified, each counted for each mapping and GPU."""
        return sum(1 for _ in self._to_verify(index))

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Mappings that no GPU of this process verifies."""
        process = self._context.process
        for chunk in self._context.own_memory:
            if not chunk.ours:
                yield (len(chunk.views), "this run did not create that memory, and does not write it")
            elif chunk.identity not in self._writers:
                yield (len(chunk.views), "no gpu can write them")
            else:
                readable = {view.mapping for view in self._readers[chunk.identity] if view.process == process}
                unread = {(label, offset) for label, offset, _ in chunk.views} - readable
                if unread:
                    yield (len(unread), "no gpu can read them there")

    def rates(self) -> Iterator[Rate]:
        """Rate at which each GPU filled and verified memory of each location."""
        for (verb, device, location), (size, seconds) in self._measured.items():
            yield Rate(verb, f"gpu{device}", str(location), size, seconds)

    def _to_fill(self, index: int) -> Iterator[MappedView]:
        for identity in self._filled[index]:
            view = self._writers[identity][index]
            if view.process == self._context.process:
                yield view

    def _to_verify(self, index: int) -> Iterator[MappedView]:
        for identity in self._filled[index]:
            for view in self._readers_after(index, identity):
                if view.process == self._context.process:
                    yield view
        if 0 < index == self.rounds - 1:  # what was filled in earlier rounds alone must not have changed
            for identity, order in self._writers.items():
                if len(order) <= index:
                    view = self._readers_after(index, identity)[0]
                    if view.process == self._context.process:
                        yield view

    def _readers_after(self, index: int, identity: Identity) -> Sequence[MappedView]:
        writer = self._writer(index, identity)
        return readers(self._readers[identity], writer, index, identity.owner, self._locations[identity])

    def _task(self, view: MappedView, index: int) -> Task:
        chunk = self._at[view.mapping]
        address = self._context.layout.address(view.label) + view.offset
        filled = min(index, len(self._writers[chunk.identity]) - 1)
        # Other bytes for each chunk, round and run.
        text = f"{self._context.seed}/{chunk.identity.owner}/{chunk.identity.label}/{filled}"
        seed = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
        return Task(chunk, view, Area(address, chunk.size, seed))

    def _verify(self, batch: Sequence[Task]) -> dict[int, Verified]:
        """Verify a batch, and after a difference each task alone; return the differences by the index of their task.

        A difference that verification alone does not find again is returned as first found.
        """
        driver = self._context.driver
        with current(driver, self._context.layout.contexts[batch[0].view.device]):
            start = time.perf_counter()
            found = driver.verify([task.area for task in batch])
            self._measure("verify", batch, time.perf_counter() - start)
            if not found.mismatches:
                return {}
            alone = {number: driver.verify([task.area]) for number, task in enumerate(batch)}
        return {number: each for number, each in alone.items() if each.mismatches} or {found.area: found}

    def _measure(self, verb: str, batch: Sequence[Task], seconds: float) -> None:
        size = sum(task.area.size for task in batch)
        self._context.advance(size)
        if not self._context.simulated:
            key = verb, *batch[0].rate_key
            before = self._measured.get(key, (0, 0.0))
            self._measured[key] = before[0] + size, before[1] + seconds

    def _writer(self, index: int, identity: Identity) -> MappedView:
        """Writer of a chunk in the latest round until one in which it was filled."""
        order = self._writers[identity]
        return order[min(index, len(order) - 1)]


def views(memory: Mapping[str, Sequence[MappedMemory]], access: Access) -> Views:
    """Views with this access of what the run created, those of its creator first."""
    found: Views = {}
    for by_creator in (True, False):
        for process, own in memory.items():
            for each in own:
                if each.ours and (each.identity.owner == process) is by_creator:
                    found.setdefault(each.identity, []).extend(gpu_views(process, each, access))
    return {identity: each for identity, each in found.items() if each}


def writers(candidates: Sequence[MappedView]) -> list[MappedView]:
    """One view for each GPU of each process, then one for each mapping that has none yet, in order."""
    of_gpus: dict[tuple[str, int], MappedView] = {}
    for view in candidates:
        of_gpus.setdefault((view.process, view.device), view)
    of_mappings = {(view.process, *view.mapping): view for view in of_gpus.values()}
    for view in candidates:
        of_mappings.setdefault((view.process, *view.mapping), view)
    return list(dict.fromkeys([*of_gpus.values(), *of_mappings.values()]))


def readers(
    candidates: Sequence[MappedView], writer: MappedView, index: int, owner: str, location: Location
) -> Sequence[MappedView]:
    """Views that verify a fill: all after the first, later that of the chunk's own GPU and one other by round-robin.

    `candidates` are all views that can read; the writer is one of them.
    """
    if not index:
        return candidates
    own = (each for each in candidates if (each.process, gpu(each.device)) == (owner, location))
    home = next(own, candidates[0])
    others = [each for each in candidates if each not in (writer, home)]
    return [home, others[index % len(others)]] if others else [home]


def batches(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Yield tasks in batches, each of one GPU on memory of one location, with at most so many bytes and areas."""
    for _, similar in groupby(sorted(tasks, key=lambda task: task.rate_key), key=lambda task: task.rate_key):
        batch: list[Task] = []
        size = 0
        for task in similar:
            if batch and (size + task.area.size > MAX_BATCH_BYTES or len(batch) == MAX_BATCH_AREAS):
                yield batch
                batch, size = [], 0
            batch.append(task)
            size += task.area.size
        yield batch


def _difference(task: Task, found: Verified, writer: MappedView) -> Finding:
    """Finding for a chunk that differs: offset in it, mapping and GPU, with the writer beside the expected word."""
    _, device, label, offset = task.view
    subject = f"{task.chunk.name} + {found.offset:#x} in {label} at {offset + found.offset:#x} by gpu{device}"
    by = f"gpu{writer.device}" + (f" of {writer.process}" if writer.process else "")
    units = "word differs" if found.mismatches == 1 else "words differ"
    expected = f"{found.expected:#018x}, stored by {by}"
    observed = f"{found.actual:#018x}, {found.mismatches:,} {units}"
    return Finding(_ASPECT, subject, expected, observed, task.chunk.path)
