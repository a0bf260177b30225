"""Blocks of a held elastic range, compared with the driver's own import, map and grant of the same blocks.

Another process holds a pool of blocks of 2 MiB, all of which exist. memtopo.attach maps batches of 64 in the holder's
range: each time the holder lends them, over its socket, and this process imports, maps and grants them. The loop over
cuda.bindings makes these three calls alone, of descriptors that it has got before. Then both give everything back,
which is not timed. Batches of both follow one another, and go first by turns. Without a GPU, both use a simulator.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import memtopo
from bench.attach import context_of
from bench.imports import ask, connected, held
from memtopo.api.elastic import ElasticRange
from memtopo.common.errors import Unavailable
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind
from memtopo.drivers.target import Target, resolve

BATCH = 64
SIZE = 2 << 20
PAIRS = 200
WARM = 10
HELD = f"""
memtopo: 1
name: bench
ranges: {{kv: {{size: 1GiB, elastic: true}}}}
chunks: {{page: {{location: gpu0, size: 2MiB, count: {{min: {2 * BATCH}, max: {2 * BATCH}}}, handles: fd}}}}
access: {{kv: {{gpu0: rw}}}}
exports: {{page: {{chunk: page, via: fd}}}}
"""
GRANT = (Grant(Location(LocationKind.GPU, 0), Access.RW),)


def main() -> None:
    """Print both times in µs a block, and the median ratio of the pairs."""
    try:
        target = resolve("local")
    except Unavailable:
        target = resolve("h200x2")
    where = f"a simulator of {target.name}" if target.simulated else target.machine.devices[0].name
    with held(HELD, "--machine", target.name) as path, context_of(target.open()):
        pairs, requests = _pairs(path, target)
    loop, ours = (statistics.median(times) * 1e6 / BATCH for times in zip(*pairs, strict=True))
    ratio = statistics.median(mine / plain for plain, mine in pairs)
    print(f"{where}, {PAIRS} pairs of batches of {BATCH} blocks of 2 MiB of a held elastic range")
    print(f"import, map and grant, descriptors at hand {loop:6.1f} µs a block")
    print(f"the request and its answer, a bare socket  {statistics.median(requests) * 1e6 / BATCH:6.1f} µs a block")
    print(f"memtopo, from the request to the grant     {ours:6.1f} µs a block")
    print(f"ratio, median of the pairs                 {ratio:6.3f}   (at most 1.5)")


def _pairs(path: str, target: Target) -> tuple[list[tuple[float, float]], list[float]]:
    """Seconds of batches of the loop and of memtopo, and of the requests of the loop."""
    requests: list[float] = []
    with memtopo.attach(path, machine=target) as shared, Loop(path, target.open()).opened() as loop:
        kv, found = shared.range("kv"), []
        for index in range(WARM + PAIRS):
            if index % 2:
                plain, ours = loop.batch(requests), _memtopo(kv)
            else:
                ours, plain = _memtopo(kv), loop.batch(requests)
            found.append((plain, ours))
    return found[WARM:], requests[WARM:]


def _memtopo(kv: ElasticRange) -> float:
    start = time.perf_counter()
    kv.map(0, "page", BATCH)
    took = time.perf_counter() - start
    kv.unmap(0, BATCH * SIZE, release=True)
    return took


class Loop:
    """The bare calls, in a reservation of their own, with blocks that the same holder lends."""

    def __init__(self, path: str, driver: KernelDriver) -> None:
        self._path, self._driver = path, driver

    @contextmanager
    def opened(self) -> Iterator[Loop]:
        """Reserve addresses, and connect."""
        self._base = self._driver.mem_address_reserve(BATCH * SIZE)
        with connected(self._path) as self._sock:
            yield self
        self._driver.mem_address_free(self._base, BATCH * SIZE)

    def batch(self, requests: list[float]) -> float:
        """Import, map and grant a batch; return the seconds, and append those of the request for it."""
        driver, base = self._driver, self._base
        start = time.perf_counter()
        answer, fds = ask(self._sock, {"request": "lend", "export": "page", "count": BATCH})
        lent = time.perf_counter()
        requests.append(lent - start)
        handles = [driver.mem_import_from_shareable_handle(fd, HandleType.FD) for fd in fds]
        for number, handle in enumerate(handles):
            driver.mem_map(base + number * SIZE, SIZE, handle)
        driver.mem_set_access(base, BATCH * SIZE, GRANT)
        took = time.perf_counter() - lent
        driver.mem_unmap(base, BATCH * SIZE)
        for fd, handle in zip(fds, handles, strict=True):
            driver.mem_release(handle)
            os.close(fd)
        ask(self._sock, {"request": "let_go", "exports": ["page"], "blocks": answer["blocks"]})
        return took
