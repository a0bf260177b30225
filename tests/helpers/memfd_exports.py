"""A shelf over memfds: memory that several processes really share, with each transport's kind of handle."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.driver.handles import Handle, Secret
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks, Difference, Tally
from memtopo.sharing.offers import Lending, LentRange, Offer
from memtopo.storage.saved import Saved

PAGE = 4096
GPU = "00112233445566778899aabbccddeeff"
MACHINE = MachineLine("h200x2", simulated=True, devices=("NVIDIA H200", "NVIDIA H200"), driver="CUDA 12.8")
PAGES = Offer("page", "chunk", "fd", 1000, PAGE, "gpu0", GPU, ("rdma",), declared=PAGE, entry="page")
OFFERS = (
    PAGES,
    Offer("hot", "chunk", "fd", 1, 4 * PAGE, "host:0"),
    Offer("woven", "chunk", "fabric", 3, PAGE, "gpu1", GPU[::-1]),
    Offer("block", "buffer", "ipc", 2, PAGE, "gpu0", GPU),
    Offer("done", "event", "ipc", 1, 0, "gpu0", GPU),
    Offer("frame", "memory", "opaque_fd", 1, 2 * PAGE, "gpu0", GPU, ("dedicated",)),
    Offer("ready", "semaphore", "timeline_fd", 1, 0, "gpu0", GPU),
    Offer("flip", "semaphore", "opaque_fd", 1, 0, "any GPU"),
)

POOL = replace(PAGES, name="pool", count=8, entry="pool", lends=Lending(6, ranges=(LentRange("kv", 64 * PAGE),)))
"""Export that lends."""


def secret(export: str, index: int) -> bytes:
    """The bytes of a handle that is no descriptor."""
    return f"{export}.{index}:".encode().ljust(64, b"\xee")


@dataclass
class Memfds:
    """Exports with one memfd for every chunk; a check has a given number of differences."""

    kept: Sequence[Offer] = OFFERS
    differences: int = 0
    memory: int = field(default_factory=lambda: os.memfd_create("shelf", os.MFD_CLOEXEC))
    out: set[int] = field(default_factory=set)
    """Numbers of the objects that are lent."""

    def __post_init__(self) -> None:
        os.write(self.memory, b"memory of the shelf")

    def offers(self) -> Sequence[Offer]:
        return self.kept

    def handle(self, export: str, index: int) -> Handle:
        if export == "broken":
            raise MemtopoError(f"cuMemExportToShareableHandle: {export}.{index} cannot be had", hint="ask for another")
        if next(offer.descriptors for offer in self.kept if offer.name == export):
            return Handle(fd=os.dup(self.memory))
        return Handle(secret=Secret(secret(export, index)), offset=512 * index)

    def lend(self, export: str, count: int) -> Sequence[int]:
        """Numbers of objects of the only export that lends."""
        most = next(offer.count for offer in self.kept if offer.name == export)
        numbers = [number for number in range(most) if number not in self.out][:count]
        if len(numbers) < count:
            raise ExchangeError("full", f"export {export!r}: {len(numbers)} are left")
        self.out.update(numbers)
        return numbers

    def take_back(self, export: str, numbers: Sequence[int]) -> None:
        del export
        self.out.difference_update(numbers)

    def lent(self, export: str) -> Collection[int]:
        del export
        return {*self.out}

    def check(self) -> Checks:
        found = tuple(Difference("access", f"page.{i}", "rw", "nothing") for i in range(min(self.differences, 100)))
        return Checks(
            (Tally("mapping", 1000, 1000), Tally("access", 1000, 1000 - self.differences)), found, self.differences
        )


@dataclass
class OneState(Memfds):
    """Such exports with two states: awake, and one in which the first exports, `going` in number, have no memory.

    With a `failure`, a switch fails after it replaced memory.
    """

    name: str = "asleep"
    state: str = "awake"
    generation: int = 1
    failure: Exception | None = None
    going: int = 1
    spec: str | None = "kv.yaml"
    source: str = ""

    @property
    def states(self) -> Sequence[str]:
        return "awake", self.name

    @property
    def absent(self) -> frozenset[str]:
        """Names of the exports that have no memory in the other state."""
        return frozenset(each.name for each in self.kept[: self.going])

    def handle(self, export: str, index: int) -> Handle:
        if self.state == self.name and export in self.absent:
            raise ExchangeError("absent", f"export {export!r} has no memory")
        return super().handle(export, index)

    def switch(self, state: str) -> PlannedState:
        return PlannedState(self, state)

    def save(self, folder: str, committed: Collection[str]) -> Saved:
        del committed
        return Saved("kv", folder, 1, self.kept[0].size, 0, direct=True, left_out=("cache",))

    def renewal(self, exports: frozenset[str]) -> PlannedState:
        raise MemtopoError(f"{sorted(exports)} cannot be created anew")

    def change(self, source: str, generation: int | None) -> PlannedState:
        del generation
        return PlannedState(self, source)


@dataclass(frozen=True)
class PlannedState:
    """A switch of such exports to a state, or a change of their source."""

    layout: OneState
    state: str

    @property
    def touched(self) -> frozenset[str]:
        return self.layout.absent if self.state == self.layout.name else frozenset()

    @property
    def lost(self) -> frozenset[str]:
        return self.touched

    @property
    def reused(self) -> frozenset[str]:
        return frozenset()

    def give_up(self) -> None:
        """Nothing was prepared."""

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        del full, in_use
        self.layout.generation += 1
        if self.touched:
            self.layout.out.clear()
        if self.layout.failure:
            raise self.layout.failure
        if self.state in self.layout.states:
            self.layout.state = self.state
        else:
            self.layout.source = self.state
        return self.layout.check()
