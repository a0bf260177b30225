"""What a process that has joined does with its heap: it allocates, writes, frees and sleeps; and what has to hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from memtopo.api.errors import NotMapped, OutOfMemory, Unsuitable
from memtopo.api.heaps import Heap
from memtopo.api.joined_member import LayoutOfMembers
from memtopo.common.errors import MemtopoError
from memtopo.driver.types import gpu
from memtopo.kinds.heaps.steps import HeapContent, heaps
from memtopo.kinds.layout import Layout, current
from memtopo.run.heaps import Keep
from tests.story.layouts import CHUNK, HEAP, HEAP_SIZE
from tests.story.oracle import STAMP, Oracle, number_of, stamp
from tests.story.world import Actor, Broken

VERBS = frozenset({"allocate", "free", "fill", "read", "doze", "rouse", "drop_backup"})
"""Events of a process with a heap that are methods of `HeapUser`."""


@dataclass(slots=True)
class Block:
    """An allocation: its bytes, and the number of the content in them; None if they are undefined."""

    size: int
    number: int | None = None


@dataclass(slots=True)
class HeapUser:
    """Allocations of a process in its heap by address, as the program knows them."""

    oracle: Oracle
    blocks: dict[int, Block] = field(default_factory=dict)
    dozing: bool = False
    content: HeapContent | None = None
    failed: bool = False
    """True once a call of the driver has failed in the process: memory may be freed later than the program says."""

    def act(self, actor: Actor, layout: LayoutOfMembers, verb: str, *args: Any) -> None:
        """Do something with the heap, if the layout has it."""
        self.follow(actor, layout)
        if self.content is None:
            return
        try:
            getattr(self, verb)(actor, layout, layout.heap(HEAP), *args)
        except MemtopoError as error:
            actor.world.note(actor.name, f"{verb}: {type(error).__name__}")
        else:
            actor.world.note(actor.name, f"{verb}: done")

    def follow(self, actor: Actor, layout: LayoutOfMembers) -> None:
        """Forget the allocations of a heap that a change has removed."""
        content = heaps(actor.program.member.run.execution.layout).get(HEAP)
        if content is not self.content:
            self.blocks, self.dozing, self.content = {}, False, content
        self.failed |= bool(actor.failed)
        if content and {each.address: each.size for each in layout.heap(HEAP).allocations} != self._sizes():
            raise Broken(f"{actor.name} has allocated {self._sizes()}, and {HEAP} has {layout.heap(HEAP).allocations}")

    def leaves(self, state: str) -> None:
        """Follow a switch that begins: the bytes are undefined if the state drops them."""
        shape = self.oracle.held.shape.heap if self.oracle.held else None
        if shape and shape.in_state(state) == "drop" and not self.dozing:
            self._lose()

    def require_limit(self, layout: Layout, limit: int) -> None:
        """Require that the heap has the limit of the spec."""
        content = heaps(layout).get(HEAP)
        if content is None or content.budget.limit != limit:
            raise Broken(f"{HEAP} has the limit {content and content.budget.limit}, not {limit}")

    def bytes_in(self, layout: Layout, state: str) -> int:
        """Bytes of memory that the heap has in a state of the layout."""
        if heaps(layout).get(HEAP) is not self.content:  # a new one, which the program has not seen
            return 0
        return sum(each.size for each in self.blocks.values()) if self._is_open(state) else 0

    def allocate(self, actor: Actor, layout: LayoutOfMembers, heap: Heap, count: int) -> None:
        """Allocate some chunks in one block."""
        size, fits = count * CHUNK, self._fits(count * CHUNK, heap)
        with self._refusals(actor, layout):
            try:
                address = heap.allocate(size)
            except OutOfMemory as error:
                if fits and self._free() >= size and not (self.failed or actor.failed):
                    raise Broken(f"{actor.name} cannot allocate {size}: {error}") from error
                raise
        if not fits:
            raise Broken(f"{actor.name} has allocated {size} at {address} beside {self._sizes()}, limit {heap.limit}")
        self.blocks[address] = Block(size)
        self.follow(actor, layout)

    def free(self, actor: Actor, layout: LayoutOfMembers, heap: Heap, index: int) -> None:
        """Free a block."""
        if not self.blocks:
            return
        address = sorted(self.blocks)[index % len(self.blocks)]
        with self._refusals(actor, layout):
            try:
                heap.free(address)
            except NotMapped:  # the memory is freed later
                if not heap._content.broken:
                    del self.blocks[address]
                raise
        del self.blocks[address]

    def fill(self, actor: Actor, layout: LayoutOfMembers, _heap: Heap) -> None:
        """Write all blocks."""
        driver = actor.drivers[-1]
        if self._is_open(layout.state):
            for address, block in sorted(self.blocks.items()):
                block.number = None
                number = self.oracle.new_content(actor, HEAP)
                with current(driver, self._context(actor)):
                    for index in range(block.size // CHUNK):
                        driver.memcpy_htod(address + index * CHUNK, stamp(number, index))
                block.number = number

    def read(self, actor: Actor, layout: LayoutOfMembers, _heap: Heap) -> None:
        """Compare all blocks with what was written into them last."""
        driver = actor.drivers[-1]
        if not self._is_open(layout.state):
            return
        for address, block in sorted(self.blocks.items()):
            with current(driver, self._context(actor)):
                found = [driver.memcpy_dtoh(address + start, STAMP) for start in range(0, block.size, CHUNK)]
            self.oracle.checked += len(found)
            if block.number is not None and found != [stamp(block.number, index) for index in range(len(found))]:
                raise Broken(f"{actor.name} has written {block.number} at {address:#x}: {[*map(number_of, found)]}")

    def doze(self, actor: Actor, layout: LayoutOfMembers, heap: Heap, keep: Keep | None) -> None:
        """Put the heap to sleep."""
        with self._refusals(actor, layout):
            heap.sleep(keep)
        self.dozing = True
        if keep is None:
            self._lose()

    def rouse(self, actor: Actor, layout: LayoutOfMembers, heap: Heap) -> None:
        """Wake the heap up."""
        wakes, size = self.dozing and self._has_memory(layout.state), sum(each.size for each in self.blocks.values())
        try:
            heap.wake()
        except (NotMapped, Unsuitable) as error:
            if wakes and self._free() >= size and not (self.failed or actor.failed):
                raise Broken(f"{actor.name} cannot wake {HEAP} up: {error}") from error
            raise
        if not wakes:
            raise Broken(f"{actor.name} has woken up {HEAP} in {layout.state}")
        self.dozing = False

    def drop_backup(self, actor: Actor, layout: LayoutOfMembers, heap: Heap) -> None:
        """Free the memory that has kept the bytes."""
        with self._refusals(actor, layout):
            heap.drop_backup()

    @contextmanager
    def _refusals(self, actor: Actor, layout: LayoutOfMembers) -> Iterator[None]:
        """Require that the heap does what it can, and refuses what it cannot do while it has no memory."""
        is_open = self._is_open(layout.state)
        try:
            yield
        except Unsuitable as error:
            if is_open:
                raise Broken(f"{actor.name} is refused in {layout.state}: {error}") from error
            raise
        except NotMapped as error:
            if not (self.failed or actor.failed):
                raise Broken(f"{actor.name} is refused without a fault: {error}") from error
            raise
        if not is_open:
            raise Broken(f"{actor.name} is not refused in {layout.state}, {'dozing' * self.dozing}")

    def _fits(self, size: int, heap: Heap) -> bool:
        """Return whether addresses and the limit have room for a block."""
        ends = [heap.address]
        for address, each in sorted(self.blocks.items()):
            ends += (address, address + each.size)
        ends.append(heap.address + HEAP_SIZE)
        holes = (end - start for start, end in zip(ends[::2], ends[1::2], strict=True))
        used = sum(each.size for each in self.blocks.values())
        return max(holes) >= size and used + size <= (heap.limit or HEAP_SIZE)

    def _free(self) -> int:
        """Return the memory that the GPU of the heap has free."""
        assert self.content
        return self.oracle.world.budget.free(gpu(self.content.step.device))

    def _context(self, actor: Actor) -> int:
        assert self.content
        context: int = actor.program.member.run.execution.layout.contexts[self.content.step.device]
        return context

    def _has_memory(self, state: str) -> bool:
        shape = self.oracle.held.shape.heap if self.oracle.held else None
        return bool(shape and shape.in_state(state) == "keep")

    def _is_open(self, state: str) -> bool:
        """Return whether the heap has memory in a state of the layout."""
        return self._has_memory(state) and not self.dozing

    def _lose(self) -> None:
        for each in self.blocks.values():
            each.number = None

    def _sizes(self) -> dict[int, int]:
        return {address: each.size for address, each in self.blocks.items()}
