"""Proof from both sides: what a GPU stores, the CPU reads, and what the CPU writes, a GPU loads.

It is about host memory that the host has access to, and managed memory; each is looked at by the process that created
it, at its ends. A copy of host memory is the CPU's own work where the host has access to it (fact 40): so a GPU stores
by memset there, and loads by kernels alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memtopo.driver.kernels import ALIGNED, Area
from memtopo.driver.pattern import pattern
from memtopo.driver.types import Access, Location, LocationKind
from memtopo.kinds.layout import current
from memtopo.plans.report import Finding, Rate
from memtopo.run.contents import Contents
from memtopo.run.verification.verifier import Scene

WINDOW = 64
"""Bytes looked at, at each end; at the second some more where the size is no multiple of 16."""

_NODE = Location(LocationKind.HOST_NUMA, 0)
"""Asked as HOST, the driver answers a GPU's access where the host has none (fact 42)."""

_ASPECT = "both sides"
_STORED, _WRITTEN = 0x5EED_0001, 0x5EED_0002


class _Sight(NamedTuple):
    """Memory as one GPU or the CPU sees it at one place; `device` is None for the CPU."""

    device: int | None
    label: str
    offset: int

    @property
    def by(self) -> str:
        return "host" if self.device is None else f"gpu{self.device}"


class Sides:
    """The CPU and the GPUs, in turn. With `kernels`, those are loaded and may be used."""

    doing = "proof by bytes"
    aspect = _ASPECT
    verbs = "", "look from both sides"
    turns = 1
    volume = 0

    def __init__(self, scene: Scene, *, kernels: bool) -> None:
        self._scene, self._kernels = scene, kernels
        self._shared = [each for each in scene.mine if _created_here(each, scene) and _sights(each, Access.R, cpu=True)]

    def write(self, turn: int) -> int:
        """Nothing: who writes and who reads is all in this process."""
        del turn
        return 0

    def read(self, turn: int) -> Iterator[Finding]:
        """Have each side write what the other reads. Raises `DriverError`."""
        del turn
        for each in self._shared:
            self._scene.stop()
            if stored := self._store(each):
                yield from self._seen_by_host(each, stored)
            if self._loaders(each) and (written := self._write(each)):
                yield from self._seen_by_gpus(each, written)

    def expected(self, turn: int) -> int:
        """How many windows are read."""
        del turn
        return sum(
            len(_ends(each)) * (len(_sights(each, Access.R, cpu=True)) + len(self._loaders(each)))
            for each in self._shared
        )

    def unseen(self) -> Iterator[tuple[int, str]]:
        """What no GPU can load but by kernels."""
        for each in self._shared:
            able = _sights(each, Access.R, cpu=False) if _sights(each, Access.RW, cpu=True) else []
            if able and not self._loaders(each):
                yield len(_ends(each)) * len(able), "a GPU's own load of host memory takes '--check full'"

    def rates(self) -> Iterator[Rate]:
        """Nothing: what takes so long are the calls."""
        return iter(())

    def _store(self, each: Contents) -> dict[int, bytes]:
        """What a GPU has stored at the ends; nothing where none may."""
        writer = next(iter(_sights(each, Access.RW, cpu=False)), None)
        if writer is None or writer.device is None:
            return {}
        driver, start = self._scene.driver, self._start(writer)
        stored = {at: bytes([0x51 + number]) * count for number, (at, count) in enumerate(_ends(each).items())}
        with current(driver, self._scene.layout.contexts[writer.device]):
            if self._kernels:
                stored = {at: pattern(_STORED, at, count) for at, count in _ends(each).items()}
                driver.fill([Area(start + at, len(data), _STORED, at) for at, data in stored.items()])
            else:
                for at, data in stored.items():
                    driver.memset_d8(start + at, data[0], len(data))
        return stored

    def _seen_by_host(self, each: Contents, stored: dict[int, bytes]) -> Iterator[Finding]:
        self._settle()
        for sight in _sights(each, Access.R, cpu=True):
            for at, data in stored.items():
                address = self._start(sight) + at
                may = self._may(each, address, Access.R)
                seen = self._scene.driver.host_read(address, len(data)) if may else "no access"
                yield Finding(_ASPECT, _subject(each, sight, at), data, seen, each.path)

    def _write(self, each: Contents) -> dict[int, bytes]:
        """What the CPU has written at the ends; nothing where it may not."""
        writer = next(iter(_sights(each, Access.RW, cpu=True)), None)
        if writer is None or not self._may(each, self._start(writer), Access.RW):
            return {}
        self._settle()
        written = {at: pattern(_WRITTEN, at, count) for at, count in _ends(each).items()}
        for at, data in written.items():
            self._scene.driver.host_write(self._start(writer) + at, data)
        return written

    def _seen_by_gpus(self, each: Contents, written: dict[int, bytes]) -> Iterator[Finding]:
        for sight in self._loaders(each):
            for at, data in written.items():
                seen = self._loaded(sight, self._start(sight) + at, at, data)
                yield Finding(_ASPECT, _subject(each, sight, at), data, seen, each.path)

    def _loaded(self, sight: _Sight, address: int, at: int, wanted: bytes) -> object:
        driver = self._scene.driver
        assert sight.device is not None
        with current(driver, self._scene.layout.contexts[sight.device]):
            if not self._kernels:
                return driver.memcpy_dtoh(address, len(wanted))
            found = driver.verify([Area(address, len(wanted), _WRITTEN, at)])
        return wanted if not found.mismatches else f"{found.seen:#018x} at {at + found.offset:#x}"

    def _loaders(self, each: Contents) -> Sequence[_Sight]:
        """The GPUs that can be seen to load it themselves."""
        managed = each.location.kind is LocationKind.GPU
        return _sights(each, Access.R, cpu=False) if managed or self._kernels else ()

    def _settle(self) -> None:
        """Wait for every GPU: where they have no concurrent access, the CPU may not touch managed memory before."""
        for context in self._scene.layout.contexts.values():
            with current(self._scene.driver, context):
                self._scene.driver.ctx_synchronize()

    def _may(self, each: Contents, address: int, access: Access) -> bool:
        """Whether the driver says that the CPU may: where it may not, the process dies (facts 21, 39, 40)."""
        driver = self._scene.driver
        if each.location.kind is not LocationKind.GPU:
            return driver.mem_get_access(address, _NODE) & access == access
        with current(driver, self._scene.layout.contexts[each.location.id]):
            return driver.pointer_is_managed(address)

    def _start(self, sight: _Sight) -> int:
        return self._scene.layout.address(sight.label) + sight.offset


def _created_here(each: Contents, scene: Scene) -> bool:
    return each.ours and each.identity.owner == scene.process


def _sights(each: Contents, access: Access, *, cpu: bool) -> list[_Sight]:
    """Everywhere that the CPU, or else a GPU, may use it so."""
    return [
        _Sight(None if cpu else grant.location.id, label, offset)
        for label, offset, grants in each.seen_at
        for grant in grants
        if (grant.location.kind is not LocationKind.GPU) is cpu and grant.access & access == access
    ]


def _ends(each: Contents) -> dict[int, int]:
    """Where its ends begin, and how many bytes they have."""
    last = max(0, each.size - WINDOW) // ALIGNED * ALIGNED
    return {0: min(WINDOW, each.size), last: each.size - last}


def _subject(each: Contents, sight: _Sight, at: int) -> str:
    return f"{each.chunk} in {sight.label} at {sight.offset + at:#x} by {sight.by}"
