"""Proof by bytes: what is written through one mapping of a chunk is read back through each of them.

Here by samples: the first and the last bytes of each chunk, by the driver's copies. Only memory that this run created
is written, and what nobody may write is counted as not checked. Where several processes have it, each takes its turn:
first whoever created it writes and all read, then, where an importer may write, an importer does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from memtopo.contents import Contents, Identity, Recorded
from memtopo.diagnostics import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, Grant, LocationKind
from memtopo.layout import Layout, current
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
    """What one process has to write and to read in one turn, by device.

    `unseen` windows are not read: no copy may make them. `foreign` ones are of memory that this run did not create.
    """

    writes: dict[int, list[Window]] = field(default_factory=dict)
    reads: dict[int, list[Window]] = field(default_factory=dict)
    records: list[Recorded] = field(default_factory=list)
    waits: list[Recorded] = field(default_factory=list)
    unseen: int = 0
    foreign: int = 0

    @property
    def windows(self) -> int:
        """How many windows are to be read."""
        return sum(len(windows) for windows in self.reads.values())


Writers = Mapping[Identity, str]
"""Which process writes each thing, or records each event, in one turn."""


def turns(seen: Mapping[str, Sequence[Contents]], events: Mapping[str, Sequence[Recorded]]) -> list[Writers]:
    """Who writes what when, by the processes that see it: a turn for who created it, and one for an importer."""
    created: dict[Identity, str] = {}
    imported: dict[Identity, str] = {}
    for process, contents in seen.items():
        for each in contents:
            if each.ours and next(_who(each, Access.RW), None):
                (created if each.identity.owner == process else imported).setdefault(each.identity, process)
    for process, recorded in events.items():
        for event in recorded:
            (created if event.identity.owner == process else imported).setdefault(event.identity, process)
    return [created, imported] if imported else [created]


def pattern(seed: int, offset: int, size: int) -> bytes:
    """`size` bytes that depend on the chunk (by its seed) and on their offset in it; both multiples of 4."""
    first = offset // 4
    words = [((index * 0x9E3779B1 + seed) ^ (seed >> 3)) & 0xFFFFFFFF for index in range(first, first + size // 4)]
    return struct.pack(f"<{len(words)}I", *words)


def prepare(
    contents: Iterable[Contents], events: Iterable[Recorded], layout: Layout, process: str, turn: int, writers: Writers
) -> Proof:
    """What one process, by its label, writes and reads in a turn."""
    proof = Proof()
    for each in contents:
        if each.seen_at:
            _prepare(proof, each, layout, process, turn, writers)
    for event in events:
        writer = writers.get(event.identity)
        if writer is not None:
            (proof.records if writer == process else proof.waits).append(event)
    return proof


def write(proof: Proof, driver: Driver, layout: Layout, stop: Callable[[], None]) -> None:
    """Write every chunk's pattern once, and wait until it has arrived. Raises `DriverError`."""
    for device, windows in proof.writes.items():
        with current(driver, layout.contexts[device]):
            for window in windows:
                stop()
                driver.memcpy_htod(window.address, window.expected)
            driver.ctx_synchronize()
    for event in proof.records:
        with current(driver, layout.contexts[event.device]):
            driver.event_record(layout.events[event.event])


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


def wait(proof: Proof, driver: Driver, layout: Layout, stop: Callable[[], None]) -> Iterator[Finding]:
    """Wait on each GPU for the events that another process recorded, and see them complete. Raises `DriverError`."""
    for event in proof.waits:
        stop()
        with current(driver, layout.contexts[event.device]):
            driver.stream_wait_event(0, layout.events[event.event])
            driver.ctx_synchronize()
        seen = "complete" if driver.event_query(layout.events[event.event]) else "not ready"
        subject = f"{event.event}, recorded by {event.identity.owner or 'this process'}"
        yield Finding("event", subject, "complete", seen, event.path)


def _prepare(proof: Proof, chunk: Contents, layout: Layout, process: str, turn: int, writers: Writers) -> None:
    size = chunk.size - chunk.size % 4
    width = min(WINDOW, size)
    seed = (crc32(f"{chunk.identity.owner}/{chunk.identity.label}".encode()) + turn * 0x85EBCA6B) & 0xFFFFFFFF
    offsets = dict.fromkeys((0, size - width)) if width else ()
    patterns = [(offset, pattern(seed, offset, width)) for offset in offsets]
    writer = writers.get(chunk.identity)
    readers = list(_who(chunk, Access.R)) if writer is not None else []
    if turn == 0:
        missed = max(1, len(patterns)) * (len(chunk.seen_at) - len({sight[1:] for sight in readers}))
        proof.unseen += missed if chunk.ours else 0
        proof.foreign += 0 if chunk.ours else missed
    if writer == process and (able := next(_who(chunk, Access.RW), None)):
        proof.writes.setdefault(able[0], []).extend(_windows(chunk, able, patterns, layout))
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
    start = layout.address(label) + base
    for offset, expected in patterns:
        subject = f"{chunk.chunk} in {label} at {base + offset:#x} by gpu{device}"
        yield Window(start + offset, subject, expected, chunk.path)
