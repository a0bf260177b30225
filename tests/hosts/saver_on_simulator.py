"""Regions of memtopo.torch.saver in heaps of a simulated machine, without PyTorch's allocator: a program of tests.

Arguments are calls, of which each has its method and its argument with `:` between, or names one of `main`. Regions:
weights, with backup (2 MiB); pages, with pageable backup (2 MiB); kv_cache, without backup (8 MiB). It prints for each
call its error, its list, or the regions with their bytes, those without memory, and those with other bytes, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from memtopo.api.joined import join
from memtopo.torch.saver import torch_memory_saver as saver

engine: Any = importlib.import_module("memtopo.torch.engine")
MIB = 1 << 20
IDENTIFIERS = count(1)
PYTORCH = torch, torch._C, torch.cuda, torch.cuda.memory, torch.accelerator
REGIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "weights": (2 * MIB, {"enable_cpu_backup": True, "cpu_backup_backend": "pinned"}),
    "pages": (2 * MIB, {"enable_cpu_backup": True}),  # of the backend that a variable chooses
    "kv_cache": (8 * MIB, {}),
}
ON_DISK = {"on_disk": (4 * MIB, {"enable_disk_backup": True})}


class Pool:
    """Heap without a pool of PyTorch, which needs a GPU."""

    device = 0

    def __init__(self, layout: Any, name: str) -> None:
        self.heap = layout.heap(name)
        self.freed = 0

    @contextmanager
    def allocating(self) -> Iterator[Pool]:
        """Allocate nothing in PyTorch."""
        yield self

    def free_unused(self) -> None:
        """Count the calls."""
        self.freed += 1

    def new_pool(self) -> Any:
        """Pool with an identifier."""
        return SimpleNamespace(id=(0, next(IDENTIFIERS)))


class Region:
    """Allocation in the heap of a region, as of a tensor."""

    def __init__(self, tag: str) -> None:
        self.size, options = (REGIONS | ON_DISK)[tag]
        with saver.region(tag, **options):
            self.heap = next(heap for key, heap in engine.ENGINE.heaps("saver") if key.tag == tag)
            self.address = self.heap.allocate(self.size)
        self.bytes[:] = 7

    @property
    def bytes(self) -> Any:
        """Bytes on the GPU."""
        return np.from_dlpack(self.heap.view(self.address))

    def state(self) -> str:
        """Word for its memory and bytes."""
        if self.heap.asleep:
            return "paused"
        return "kept" if bool((self.bytes == 7).all()) else "lost"


def main() -> None:
    """Make the regions and the calls."""
    pools: dict[str, Pool] = {}
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda _device: SimpleNamespace(total_memory=64 << 30)
    os.environ["TMS_INIT_CPU_BACKUP_BACKEND"] = "mmap"
    os.environ["MEMTOPO_ENGINE"] = f"saver-{os.getpid()}"
    engine.join = partial(join, machine="h200x2")
    engine.pool = lambda layout, name: pools.setdefault(name, Pool(layout, name))
    others = engine.ENGINE.pool("vllm", "weights", 0).heap  # of another drop-in in the process
    others.allocate(MIB)
    regions = {tag: Region(tag) for tag in REGIONS}
    taken: list[int] = []
    more: dict[str, Callable[[str], Any]] = {
        "fill": lambda _: fill(others, taken),
        "empty": lambda _: empty(others, taken),
        "retain": lambda tag: setattr(saver, "retain_cpu_backup", tag == "1"),
        "margin": lambda tag: setattr(saver, "memory_margin_bytes", int(tag)),
        "init": lambda tag: os.environ.update(TMS_INIT_ENABLE=tag),
        "allocate": lambda tag: regions[tag].heap.allocate(2 * MIB),
        "region": lambda tag: allocate_anew(*tag.split(",")),
        "disk": lambda _: regions.update(on_disk=Region("on_disk")),
        "enter": lambda tags: entered(tags.split(",")),
        "graphs": lambda _: graphs(),
        "heaps": lambda _: [heap.name for _, heap in engine.ENGINE.heaps("saver")],
        "backups": lambda _: [name for name, each in regions.items() if each.heap.backup(each.address)],
    }
    for each in sys.argv[1:]:
        method, _, tag = each.partition(":")
        found = call(more.get(method) or getattr(saver, method), tag or None)
        if found is None:
            found = {name: region.state() for name, region in regions.items()} | {"others": others.asleep}
        print(json.dumps(found), flush=True)
    engine.ENGINE.close()


def call(method: Callable[[Any], Any], argument: str | None) -> Any:
    """Make one call; return its list or its error."""
    try:
        found = method(argument)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return found if isinstance(found, list) else None


def allocate_anew(tag: str, backend: Any = None) -> None:
    """Allocate in a region that has no backup."""
    with saver.region(tag, cpu_backup_backend=backend):
        heaps = [heap for key, heap in engine.ENGINE.heaps("saver") if key.tag == tag]
        heaps[-1].allocate(2 * MIB)


def fill(others: Any, taken: list[int]) -> None:
    """Take all memory of the GPU but 4 MiB."""
    for size in (1 << 30, 2 * MIB):
        with suppress(MemoryError):
            while True:
                taken.append(others.allocate(size))
    for _ in range(2):
        others.free(taken.pop())


def empty(others: Any, taken: list[int]) -> None:
    """Free what `fill` has taken."""
    while taken:
        others.free(taken.pop())


def entered(tags: list[str]) -> list[Any]:
    """Enter regions, each inside of the one before it.

    Return how often each has freed its unused memory, and whether PyTorch is as it was meanwhile.
    """
    original = [dict(vars(each)) for each in PYTORCH]
    pools = [engine.ENGINE.pool("saver", key.tag, 0, key.variant) for key, _ in engine.ENGINE.heaps("saver")]
    before = [pool.freed for pool in pools]
    with ExitStack() as stack:
        for tag in tags:
            stack.enter_context(saver.region(tag, **REGIONS[tag][1]))
        same = original == [dict(vars(each)) for each in PYTORCH]
    return [*(pool.freed - number for pool, number in zip(pools, before, strict=True)), same]


class Graph:
    """Graph, of which PyTorch for a CPU has none."""


def graphs() -> list[Any]:
    """Capture graphs: two with a pool of the program, one with the pool of the first, one alone, one of another tag.

    Return the pools in which they were captured, and how many pools are left after each graph was deleted.
    """
    used: list[Any] = []
    retired: list[Any] = []

    def capture(_graph: Graph, pool: Any, **_: Any) -> Any:
        used.append(pool)
        return nullcontext()

    def captured(tag: str, pool: Any) -> Graph:
        graph = Graph()
        with saver.cuda_graph(graph, pool, tag=tag, **REGIONS[tag][1]):
            return graph

    torch.cuda.graph = capture
    torch._C._cuda_releasePool = lambda _device, number: retired.append(number)
    own = (7, 0)
    kept = [captured("pages", own), captured("pages", own)]
    kept += [captured("pages", used[0]), captured("pages", None), captured("kv_cache", own)]
    left = []
    while kept:
        del kept[0]
        left.append(len({*used}) - len(retired))
    return [[number for _, number in used], left]


if __name__ == "__main__":
    main()
