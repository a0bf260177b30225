"""Batches of 64 mappings in an elastic range, compared with the same calls in a plain loop over cuda.bindings.

The loop has its descriptors prepared. `reuse` maps 64 chunks that exist, grants access to all by one call, and unmaps
all by one call; `create` creates them before, and releases them after. memtopo makes the same calls through its checks,
records, ledger and driver, and waits for the GPU before it unmaps. Batches of both follow one another, and go first by
turns, since what else the host does changes the time of a call by a third within seconds.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from typing import Any

import memtopo
from bench.build import prepare
from memtopo.api.elastic import ElasticRange
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve

BATCH = 64
SIZE = 2 << 20
PAIRS = 600
WARM = 20
PLACES = 4
SPEC = {
    "memtopo": 1,
    "name": "bench-elastic",
    "ranges": {"kv": {"size": "1GiB", "elastic": "true"}},
    "chunks": {"page": {"location": "gpu0", "size": "2MiB", "count": {"max": "128"}}},
    "access": {"kv": {"gpu0": "rw"}},
}


def main() -> None:
    """Print both times in µs a mapping, and the median ratio of the pairs, for each case."""
    try:
        local = resolve("local")
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    name = local.machine.devices[0].name
    print(f"{name}, {PAIRS} pairs of batches of {BATCH} mappings of 2 MiB")
    with memtopo.applied(SPEC, local) as layout, closing(Loop(BATCH)) as loop:
        kv, pages = layout.range("kv"), layout.chunks("page")
        for case, create in (("reuse", False), ("create", True)):
            pages.trim()
            pairs = [_pair(index, loop, kv, create=create) for index in range(PAIRS + WARM)][WARM:]
            plain, ours = (statistics.median(times) * 1e6 / BATCH for times in zip(*pairs, strict=True))
            ratio = statistics.median(mine / bare for bare, mine in pairs)
            print(f"{case:6}  plain loop over cuda.bindings  {plain:6.1f} µs a mapping")
            print(f"{case:6}  memtopo                        {ours:6.1f} µs a mapping")
            print(f"{case:6}  ratio, median of the pairs     {ratio:6.3f}   (at most 1.10)")


def _pair(index: int, loop: Loop, kv: ElasticRange, *, create: bool) -> tuple[float, float]:
    """Seconds of one batch of the loop and of memtopo, at the next place."""
    place = index % PLACES * BATCH * SIZE
    if index % 2:
        return loop.batch(place, create=create), _memtopo(kv, place, create=create)
    ours = _memtopo(kv, place, create=create)
    return loop.batch(place, create=create), ours


def _memtopo(kv: ElasticRange, place: int, *, create: bool) -> float:
    start = time.perf_counter()
    kv.map(place, "page", BATCH)
    kv.unmap(place, BATCH * SIZE, release=create)
    return time.perf_counter() - start


class Loop:
    """The bare calls, in a reservation of their own."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._size = chunks * SIZE
        self._cuda, self._properties, self._access = prepare()
        self._base = int(self._one(self._cuda.cuMemAddressReserve(PLACES * self._size, 0, 0, 0)))
        self._kept = self._created()

    def batch(self, place: int, *, create: bool) -> float:
        """Map, grant and unmap a batch, with `create` of new chunks; returns the seconds."""
        cuda, address = self._cuda, self._base + place
        start = time.perf_counter()
        handles = self._created() if create else self._kept
        for number, handle in enumerate(handles):
            (error,) = cuda.cuMemMap(address + number * SIZE, SIZE, 0, handle, 0)
            assert not error
        (error,) = cuda.cuMemSetAccess(address, self._size, [self._access], 1)
        assert not error
        (error,) = cuda.cuMemUnmap(address, self._size)
        assert not error
        if create:
            self._release(handles)
        return time.perf_counter() - start

    def close(self) -> None:
        """Release everything."""
        self._release(self._kept)
        self._one(self._cuda.cuMemAddressFree(self._base, PLACES * self._size))

    def _created(self) -> list[Any]:
        handles = []
        for _ in range(self._chunks):
            error, handle = self._cuda.cuMemCreate(SIZE, self._properties, 0)
            assert not error
            handles.append(handle)
        return handles

    def _release(self, handles: list[Any]) -> None:
        for handle in handles:
            (error,) = self._cuda.cuMemRelease(handle)
            assert not error

    def _one(self, answer: tuple[Any, ...]) -> Any:
        assert not answer[0], answer[0]
        return answer[1] if len(answer) > 1 else None
