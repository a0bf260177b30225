"""Proof by samples: the first and the last bytes of each chunk, by the driver's copies.

What nobody may write is counted as not checked. First whoever created a chunk writes and all read, then, where an
importer may write, an importer does. The end of a chunk and the start of the one behind it are copied at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from memtopo.driver.pattern import pattern
from memtopo.driver.types import Access, Grant, LocationKind
from memtopo.kinds.layout import current
from memtopo.plans.report import Finding, Rate
from memtopo.run.contents import Contents, Identity
from memtopo.run.verification.verifier import Events, Scene

WINDOW = 64
"""Bytes looked at, at each end of a chunk; at the second some more where its size is no multiple of 8."""

_WELL = Finding("bytes", "", b"", b"")


class Window(NamedTuple):
    """A few bytes of one chunk, as one device sees them through one mapping: in a range or a buffer, from `at` on."""

    address: int
    expected: bytes
    chunk: Contents
    label: str
    at: int

    def finding(self, device: int, seen: bytes) -> Finding:
        """What a device sees there."""
        if seen == self.expected:
            return _WELL
        subject = f"{self.chunk.chunk} in {self.label} at {self.at:#x} by gpu{device}"
        return Finding("bytes", subject, self.expected, seen, self.chunk.path)


@dataclass(slots=True)
class _Turn:
    """What one process has to write and to read in one turn, by device.

    `unseen` windows are not read: no copy may make them. `foreign` ones are of memory that this run did not create.
    """

    writes: dict[int, list[Window]] = field(default_factory=dict)
    reads: dict[int, list[Window]] = field(default_factory=dict)
    unseen: int = 0
    foreign: int = 0


Writers = Mapping[Identity, str]
"""Which process writes each thing in one turn."""


class Samples:
    """The ends of each chunk and buffer."""

    doing = "proof by bytes"
    aspect = "bytes"
    verbs = "write", "read"
    volume = 0

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._events = Events(scene)
        self._writers = _writers(scene)
        self.turns = max(len(self._writers), len(self._events.turns))
        self._prepared: tuple[int, _Turn] | None = None
        self._unseen = self._foreign = 0

    def write(self, turn: int) -> int:
        """Write every chunk's pattern once, and wait until it has arrived. Raises `DriverError`."""
        scene, found = self._scene, self._turn(turn)
        for device, windows in found.writes.items():
            with current(scene.driver, scene.layout.contexts[device]):
                for group in _joined(windows):
                    scene.stop()
                    scene.driver.memcpy_htod(group[0].address, b"".join([window.expected for window in group]))
                scene.driver.ctx_synchronize()
        self._events.record(turn)
        return sum(map(len, found.writes.values()))

    def read(self, turn: int) -> Iterator[Finding]:
        """Read the patterns back through every mapping, by every device that may. Raises `DriverError`."""
        yield from self._events.wait(turn)
        for device, windows in self._turn(turn).reads.items():
            # Not within: whoever takes the findings must not do so with a context that is not its own.
            yield from self._read(device, windows)

    def expected(self, turn: int) -> int:
        """How many windows are read."""
        return sum(map(len, self._turn(turn).reads.values()))

    def unseen(self) -> Iterator[tuple[int, str]]:
        """Windows that nobody may write or read, and those that are somebody else's."""
        if self._unseen:
            yield self._unseen, "no device may write them, or read them there, by copies; --check full may"
        if self._foreign:
            yield self._foreign, "they are somebody else's memory, which is not written"

    def rates(self) -> Iterator[Rate]:
        """Nothing: what takes so long are the calls."""
        return iter(())

    def _read(self, device: int, windows: Sequence[Window]) -> list[Finding]:
        scene, found = self._scene, []
        with current(scene.driver, scene.layout.contexts[device]):
            for group in _joined(windows):
                scene.stop()
                start = group[0].address
                data = scene.driver.memcpy_dtoh(start, group[-1].address + len(group[-1].expected) - start)
                for window in group:
                    at = window.address - start
                    found.append(window.finding(device, data[at : at + len(window.expected)]))
        return found

    def _turn(self, turn: int) -> _Turn:
        if self._prepared is None or self._prepared[0] != turn:
            found = _Turn()
            for each in self._scene.mine:
                if each.seen_at:
                    self._prepare(found, each, turn)
            self._prepared = turn, found
            if turn == 0:
                self._unseen, self._foreign = found.unseen, found.foreign
        return self._prepared[1]

    def _prepare(self, found: _Turn, chunk: Contents, turn: int) -> None:
        patterns = _patterns(chunk, turn)
        writer = self._writers[turn].get(chunk.identity) if turn < len(self._writers) else None
        readers = list(_who(chunk, Access.R)) if writer is not None else []
        if turn == 0:
            missed = max(1, len(patterns)) * (len(chunk.seen_at) - len({sight[1:] for sight in readers}))
            found.unseen += missed if chunk.ours else 0
            found.foreign += 0 if chunk.ours else missed
        if writer == self._scene.process and (able := next(_who(chunk, Access.RW), None)):
            found.writes.setdefault(able[0], []).extend(self._windows(chunk, able, patterns))
        for reader in readers:
            found.reads.setdefault(reader[0], []).extend(self._windows(chunk, reader, patterns))

    def _windows(
        self, chunk: Contents, seer: tuple[int, str, int], patterns: list[tuple[int, bytes]]
    ) -> Iterator[Window]:
        _, label, base = seer
        start = self._scene.layout.address(label)
        for offset, expected in patterns:
            yield Window(start + base + offset, expected, chunk, label, base + offset)


def _patterns(chunk: Contents, turn: int) -> list[tuple[int, bytes]]:
    """What is to stand at the ends of a chunk, by offset."""
    seed = crc32(f"{chunk.identity.owner}/{chunk.identity.label}".encode()) + (turn << 32)
    last = max(0, chunk.size - WINDOW) // 8 * 8
    first = [(0, pattern(seed, 0, min(WINDOW, last)))] if last else []
    return [*first, (last, pattern(seed, last, chunk.size - last))]


def _joined(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Neighbours in one range, in memory of one GPU, that one copy can take."""
    group: list[Window] = []
    for window in sorted(windows, key=lambda window: window.address):
        if group and not _adjoin(group[-1], window):
            yield group
            group = []
        group.append(window)
    if group:
        yield group


def _adjoin(one: Window, other: Window) -> bool:
    return (
        one.address + len(one.expected) == other.address
        and one.label == other.label
        and one.chunk.location == other.chunk.location
        and one.chunk.location.kind is LocationKind.GPU
    )


def _writers(scene: Scene) -> list[Writers]:
    """Who writes what when, by the processes that see it: a turn for who created it, and one for an importer."""
    created: dict[Identity, str] = {}
    imported: dict[Identity, str] = {}
    for process, contents in scene.seen.items():
        for each in contents:
            if each.ours and next(_who(each, Access.RW), None):
                (created if each.identity.owner == process else imported).setdefault(each.identity, process)
    return [created, imported] if imported else [created]


def _who(chunk: Contents, access: Access) -> Iterator[tuple[int, str, int]]:
    """Each (GPU, range, offset) that may copy the chunk so."""
    hosted = chunk.location.kind is not LocationKind.GPU
    for label, offset, grants in chunk.seen_at:
        for device in _able(grants, access, hosted=hosted):
            yield device, label, offset


@lru_cache(maxsize=1024)
def _able(grants: tuple[Grant, ...], access: Access, *, hosted: bool) -> tuple[int, ...]:
    """The GPUs that may copy so.

    A copy to host memory that the host may only read is made by the CPU, which dies of it (fact 40).
    """
    gpus = [grant for grant in grants if grant.location.kind is LocationKind.GPU]
    others = (grant.access for grant in grants if grant.location.kind is not LocationKind.GPU)
    if hosted and access is Access.RW and Access.R in others:
        return ()
    return tuple(grant.location.id for grant in gpus if grant.access & access == access)
