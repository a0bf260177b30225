"""Regions of memtopo.torch.saver in heaps of a simulated machine, without PyTorch's allocator: a program of tests.

Arguments are calls, of which each has its method and its tag with `:` between, or `fill` and `empty`, which take and
free all memory of the GPU but 4 MiB. Regions: weights, with backup (2 MiB); pages, with pageable backup (2 MiB);
kv_cache, without backup (8 MiB). It prints for each call its error, or the regions with their bytes, those without
memory, and those with other bytes, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from memtopo.api.joined import join
from memtopo.torch.saver import torch_memory_saver as saver

engine: Any = importlib.import_module("memtopo.torch.engine")
MIB = 1 << 20
REGIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "weights": (2 * MIB, {"enable_cpu_backup": True}),
    "pages": (2 * MIB, {"enable_cpu_backup": True, "cpu_backup_backend": "mmap"}),
    "kv_cache": (8 * MIB, {}),
}


class Pool:
    """Heap without a pool of PyTorch, which needs a GPU."""

    def __init__(self, layout: Any, name: str) -> None:
        self.heap = layout.heap(name)
        self.trimmed = 0

    @contextmanager
    def allocating(self) -> Iterator[Pool]:
        """Allocate nothing in PyTorch."""
        yield self

    def trim(self) -> None:
        """Count the calls."""
        self.trimmed += 1


class Region:
    """Allocation in the heap of a region, as of a tensor."""

    def __init__(self, tag: str) -> None:
        self.size, options = REGIONS[tag]
        with saver.region(tag, **options):
            self.heap = engine.ENGINE.with_tag(tag)[-1][1]
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
    os.environ["MEMTOPO_ENGINE"] = f"saver-{os.getpid()}"
    engine.join = partial(join, machine="h200x2")
    engine.pool = lambda layout, name: pools.setdefault(name, Pool(layout, name))
    others = engine.ENGINE.pool("weights", 0).heap  # of another drop-in in the process
    others.allocate(MIB)
    regions = {tag: Region(tag) for tag in REGIONS}
    taken: list[int] = []
    for each in sys.argv[1:]:
        method, _, tag = each.partition(":")
        print(json.dumps(call(method, tag, regions, others, taken)), flush=True)
    engine.ENGINE.close()


def call(method: str, tag: str, regions: dict[str, Region], others: Any, taken: list[int]) -> Any:
    """Make one call; return its error or what it has left."""
    try:
        match method:
            case "fill":
                fill(others, taken)
            case "empty":
                while taken:
                    others.free(taken.pop())
            case "retain":
                saver.retain_cpu_backup = tag == "1"
            case "enter":
                return entered(tag.split(","))
            case "backups":
                return [name for name, region in regions.items() if region.heap.backup(region.address)]
            case _:
                getattr(saver, method)(tag or None)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return {name: region.state() for name, region in regions.items()} | {"others": others.asleep}


def fill(others: Any, taken: list[int]) -> None:
    """Take all memory of the GPU but 4 MiB."""
    for size in (1 << 30, 2 * MIB):
        with suppress(MemoryError):
            while True:
                taken.append(others.allocate(size))
    for _ in range(2):
        others.free(taken.pop())


def entered(tags: list[str]) -> list[Any]:
    """Enter regions, each inside of the one before it, and empty the cache in the last if it is not named twice.

    Return how often each was trimmed, and whether PyTorch has its function again.
    """
    original = torch.cuda.empty_cache
    with ExitStack() as stack:
        for tag in tags:
            stack.enter_context(saver.region(tag, **REGIONS[tag][1]))
        if len({*tags}) == len(tags):
            torch.cuda.empty_cache()
    pools = [engine.ENGINE.pool(each.tag, 0, each.variant) for each, _ in engine.ENGINE.with_tag()]
    return [*(pool.trimmed for pool in pools), torch.cuda.empty_cache is original]


if __name__ == "__main__":
    main()
