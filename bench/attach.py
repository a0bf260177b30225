"""Attaching a reader to committed memory, compared with one connection and the bare imports.

Another process holds 1,000 chunks of 2 MiB, which a writer has committed. Both readers connect, request the handles in
batches of 64, import, map and grant them, and give everything back: memtopo.attach, whose time includes validation,
planning, the check of every mapping and of what is left, and a plain loop over the socket and the same driver. The
primary context exists before either, as in a program that uses the GPU. Without a GPU, both use a simulator.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import memtopo
from bench.imports import BATCH, ask, connected, held
from memtopo.common.errors import Unavailable
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind
from memtopo.drivers.target import Target, resolve

CHUNKS = 1000
SIZE = 2 << 20
ROUNDS = 7
HELD = f"""
memtopo: 1
name: bench
chunks: {{page: {{location: gpu0, size: 2MiB, count: {CHUNKS}, handles: fd}}}}
exports: {{page: {{chunk: page, via: fd, commit: required}}}}
"""
READABLE = (Grant(Location(LocationKind.GPU, 0), Access.R),)


def main() -> None:
    """Print both times in ms, and the median ratio of the pairs."""
    try:
        target = resolve("local")
    except Unavailable:
        target = resolve("h200x2")
    with held(HELD, "--machine", target.name) as path, context_of(target.open()):
        with memtopo.attach(path, role="writer", machine=target) as writer:
            writer.commit()
        pairs = [(_plain(path, target), _attach(path, target)) for _ in range(ROUNDS + 1)][1:]
    plain, ours = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    ratio = statistics.median(mine / loop for loop, mine in pairs)
    where = f"a simulator of {target.name}" if target.simulated else target.machine.devices[0].name
    print(f"{where}, a reader of {CHUNKS:,} committed chunks of 2 MiB, attach and release, {ROUNDS} rounds")
    print(f"one connection and the bare calls  {plain:7.1f} ms")
    print(f"memtopo.attach                     {ours:7.1f} ms")
    own = statistics.median(mine - loop for loop, mine in pairs) * 1e6 / CHUNKS
    print(f"ratio, median of the pairs         {ratio:7.3f}   (at most 1.25)")
    print(f"difference of the pairs            {own:7.1f} µs a chunk")


def _attach(path: str, target: Target) -> float:
    start = time.perf_counter()
    with memtopo.attach(path, machine=target):
        pass
    return time.perf_counter() - start


def _plain(path: str, target: Target) -> float:
    driver = target.open()
    with context_of(driver):
        start = time.perf_counter()
        address = driver.mem_address_reserve(CHUNKS * SIZE)
        handles = _mapped(path, driver, address)
        driver.mem_set_access(address, CHUNKS * SIZE, READABLE)
        for index in range(CHUNKS):
            driver.mem_unmap(address + index * SIZE, SIZE)
        for handle in handles:
            driver.mem_release(handle)
        driver.mem_address_free(address, CHUNKS * SIZE)
        return time.perf_counter() - start


def _mapped(path: str, driver: KernelDriver, address: int) -> list[int]:
    """Import all chunks over one connection, and map them one after another."""
    handles: list[int] = []
    with connected(path) as sock:
        ask(sock, {"request": "offers", "first": 0})
        while (first := len(handles)) < CHUNKS:
            count = min(BATCH, CHUNKS - first)
            _, fds = ask(sock, {"request": "handles", "export": "page", "first": first, "count": count})
            for fd in fds:
                handles.append(driver.mem_import_from_shareable_handle(fd, HandleType.FD))
                os.close(fd)
                driver.mem_map(address + (len(handles) - 1) * SIZE, SIZE, handles[-1])
    return handles


@contextmanager
def context_of(driver: KernelDriver) -> Iterator[None]:
    """Have the primary context of gpu0, as a program that uses it."""
    driver.ctx_push_current(driver.device_primary_ctx_retain(0))
    try:
        yield
    finally:
        driver.ctx_pop_current()
        driver.device_primary_ctx_release(0)
