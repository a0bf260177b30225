"""Batches of 64 mappings in an elastic range, compared with the same calls in a plain loop over cuda.bindings.

The loop has its descriptors prepared. `reuse` maps 64 chunks that exist, grants access to all by one call, and unmaps
all by one call; `create` creates them before, and releases them after. memtopo makes the same calls through its checks,
records, ledger and driver, and waits for the GPU before it unmaps.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import memtopo
from bench.build import prepare
from memtopo.api.elastic import ElasticRange
from memtopo.common.errors import Unavailable
from memtopo.machine.target import resolve

BATCH = 64
SIZE = 2 << 20
BATCHES = 50
ROUNDS = 9
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
    print(f"{name}, batches of {BATCH} mappings of 2 MiB, {ROUNDS} rounds of {BATCHES} batches")
    with memtopo.applied(SPEC, local) as layout:
        prepared, kv, pages = prepare(), layout.range("kv"), layout.chunks("page")
        for case, create in (("reuse", False), ("create", True)):
            pages.trim()
            pairs = [(_plain(prepared, create=create), _memtopo(kv, create=create)) for _ in range(ROUNDS + 1)][1:]
            plain, ours = (statistics.median(times) * 1e6 / (BATCH * BATCHES) for times in zip(*pairs, strict=True))
            ratio = statistics.median(mine / loop for loop, mine in pairs)
            print(f"{case:6}  plain loop over cuda.bindings  {plain:6.1f} µs a mapping")
            print(f"{case:6}  memtopo                        {ours:6.1f} µs a mapping")
            print(f"{case:6}  ratio, median of the pairs     {ratio:6.3f}   (at most 1.10)")


def _memtopo(kv: ElasticRange, *, create: bool) -> float:
    start = time.perf_counter()
    for index in range(BATCHES):
        offset = index % 4 * BATCH * SIZE
        kv.map(offset, "page", BATCH)
        kv.unmap(offset, BATCH * SIZE, release=create)
    return time.perf_counter() - start


def _plain(prepared: tuple[Any, Any, Any], *, create: bool) -> float:
    cuda, properties, access = prepared
    error, base = cuda.cuMemAddressReserve(4 * BATCH * SIZE, 0, 0, 0)
    assert not error
    handles = [] if create else _created(cuda, properties)
    start = time.perf_counter()
    for index in range(BATCHES):
        address = int(base) + index % 4 * BATCH * SIZE
        if create:
            handles = _created(cuda, properties)
        for number, handle in enumerate(handles):
            (error,) = cuda.cuMemMap(address + number * SIZE, SIZE, 0, handle, 0)
            assert not error
        (error,) = cuda.cuMemSetAccess(address, BATCH * SIZE, [access], 1)
        assert not error
        (error,) = cuda.cuMemUnmap(address, BATCH * SIZE)
        assert not error
        if create:
            _release(cuda, handles)
    took = time.perf_counter() - start
    if not create:
        _release(cuda, handles)
    (error,) = cuda.cuMemAddressFree(base, 4 * BATCH * SIZE)
    assert not error
    return took


def _created(cuda: Any, properties: Any) -> list[Any]:
    handles = []
    for _ in range(BATCH):
        error, handle = cuda.cuMemCreate(SIZE, properties, 0)
        assert not error
        handles.append(handle)
    return handles


def _release(cuda: Any, handles: list[Any]) -> None:
    for handle in handles:
        (error,) = cuda.cuMemRelease(handle)
        assert not error
