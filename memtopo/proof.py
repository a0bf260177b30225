"""Proof by bytes: what is written through one mapping of a chunk is read back through each of them.

Here by samples: the first and the last bytes of each chunk, by the driver's copies. Only memory that this run created
is written, and what nobody may write is counted as not checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from memtopo.diagnostics import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, LocationKind
from memtopo.layout import Layout, current
from memtopo.planner import Contents
from memtopo.report import Finding

WINDOW = 64
"""Bytes looked at, at each end of a chunk."""


@dataclass(frozen=True, slots=True)
class Window:
    """A few bytes of one chunk, as one device sees them through one mapping."""

    address: int
    subject: str
    expected: bytes
    path: Path


@dataclass(slots=True)
class Proof:
    """What is to be written and read, by device; `unseen` windows are not: no copy may make them."""

    writes: dict[int, list[Window]] = field(default_factory=dict)
    reads: dict[int, list[Window]] = field(default_factory=dict)
    unseen: int = 0

    @property
    def windows(self) -> int:
        """How many windows are to be read."""
        return sum(len(windows) for windows in self.reads.values())


def pattern(seed: int, offset: int, size: int) -> bytes:
    """`size` bytes that depend on the chunk (by its seed) and on their offset in it; both multiples of 4."""
    first = offset // 4
    words = [((index * 0x9E3779B1 + seed) ^ (seed >> 3)) & 0xFFFFFFFF for index in range(first, first + size // 4)]
    return struct.pack(f"<{len(words)}I", *words)


def prepare(contents: Iterable[Contents], layout: Layout) -> Proof:
    """Decide who writes and who reads what."""
    proof = Proof()
    for number, chunk in enumerate(contents):
        if chunk.seen_at:
            _prepare(proof, chunk, (number + 1) * 0x85EBCA6B, layout)
    return proof


def write(proof: Proof, driver: Driver, layout: Layout, stop: Callable[[], None]) -> None:
    """Write every chunk's pattern once, and wait until it has arrived. Raises `DriverError`."""
    for device, windows in proof.writes.items():
        with current(driver, layout.contexts[device]):
            for window in windows:
                stop()
                driver.memcpy_htod(window.address, window.expected)
            driver.ctx_synchronize()


def read(proof: Proof, driver: Driver, layout: Layout, stop: Callable[[], None]) -> Iterator[Finding]:
    """Read the patterns back through every mapping, by every device that may. Raises `DriverError`."""
    for device, windows in proof.reads.items():
        seen = []
        with current(driver, layout.contexts[device]):
            for window in windows:
                stop()
                seen.append(driver.memcpy_dtoh(window.address, len(window.expected)))
        # Not within: whoever takes the findings must not do so with a context that is not its own.
        for window, data in zip(windows, seen, strict=True):
            yield Finding("bytes", window.subject, window.expected, data, window.path)


def _prepare(proof: Proof, chunk: Contents, seed: int, layout: Layout) -> None:
    offsets = (0, chunk.size - WINDOW)
    patterns = [(offset, pattern(seed & 0xFFFFFFFF, offset, WINDOW)) for offset in offsets]
    writer = next(_who(chunk, Access.RW), None)
    readers = list(_who(chunk, Access.R)) if writer else []
    proof.unseen += len(patterns) * (len(chunk.seen_at) - len({sight[1:] for sight in readers}))
    if writer:
        proof.writes.setdefault(writer[0], []).extend(_windows(chunk, writer, patterns, layout))
    for reader in readers:
        proof.reads.setdefault(reader[0], []).extend(_windows(chunk, reader, patterns, layout))


def _who(chunk: Contents, access: Access) -> Iterator[tuple[int, str, int]]:
    """Each (GPU, range, offset) that may copy the chunk so."""
    for label, offset, grants in chunk.seen_at:
        if _ends_the_process(chunk, grants, access):
            continue
        for grant in grants:
            if grant.location.kind is LocationKind.GPU and grant.access & access == access:
                yield grant.location.id, label, offset


def _ends_the_process(chunk: Contents, grants: Iterable[Grant], access: Access) -> bool:
    """A copy to host memory that the host may only read is made by the CPU, which dies of it (fact 40)."""
    if chunk.location.kind is LocationKind.GPU or access is not Access.RW:
        return False
    return any(grant.access == Access.R for grant in grants if grant.location.kind is not LocationKind.GPU)


def _windows(
    chunk: Contents, seer: tuple[int, str, int], patterns: list[tuple[int, bytes]], layout: Layout
) -> Iterator[Window]:
    device, label, base = seer
    start = layout.ranges[label].address + base
    for offset, expected in patterns:
        subject = f"{chunk.chunk} in {label} at {base + offset:#x} by gpu{device}"
        yield Window(start + offset, subject, expected, chunk.path)
