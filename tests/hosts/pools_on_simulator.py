"""Heaps under a stand-in of PyTorch's caching allocator, on a simulated machine: prints how each case ended.

PyTorch for a CPU has no memory pools. The stand-in has one tensor in each segment, and calls the C functions of a heap.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

import memtopo
from memtopo.torch import HeapPool, pools

MIB = 1 << 20
SPEC = {
    "memtopo": 1,
    "name": "pools",
    "heaps": {"weights": {"location": "gpu0", "size": "1GiB", "limit": "256MiB"}},
    "access": {"weights": {"gpu0": "rw"}},
}
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class Caching:
    """Caching allocator, of which the methods are those functions of PyTorch that memtopo calls."""

    def __init__(self) -> None:
        self.functions: dict[Any, Any] = {}
        self.uses: Counter[Any] = Counter({(0, 0): 1})  # memory outside of pools
        self.entered: list[Any] = []
        self.segments: list[dict[str, Any]] = []
        self.capturing = False
        self.registered: list[Any] = []

    def make_pool(self, functions: Any) -> Any:
        number = (0, len(self.functions) + 1)
        self.functions[number] = functions
        self.uses[number] = 1
        return SimpleNamespace(id=number)

    def begin(self, _device: int, number: Any) -> None:
        assert self.uses[number] > 0, "a pool that was retired"
        assert number not in self.entered, "a pool that is in use"
        self.uses[number] += 1
        self.entered.append(number)

    def end(self, _device: int, number: Any) -> None:
        self.entered.remove(number)

    def release(self, _device: int, number: Any) -> None:
        self.uses[number] -= 1
        assert self.uses[number] >= 0, "a pool that was released twice"

    def tensor(self, mib: int, number: Any = None) -> dict[str, Any]:
        """Allocate a tensor in the pool that was entered last, or in `number`; return its segment."""
        number = number or self.entered[-1]
        size = mib * MIB
        for each in self.segments:
            if each["segment_pool_id"] == number and not each["allocated_size"] and each["total_size"] == size:
                each["allocated_size"] = each["active_size"] = size
                return each
        address = ALLOCATE(self.functions[number][0])(size, 0, None)
        if not address:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {mib} MiB")
        made = {"device": 0, "address": address, "segment_pool_id": number}
        self.segments.append(made | dict.fromkeys(("total_size", "allocated_size", "active_size"), size))
        return self.segments[-1]

    def add(self, mib: int) -> None:
        """Add a segment that is in no pool, with a tensor in it."""
        made = {"device": 0, "address": 1, "segment_pool_id": (0, 0)}
        self.segments.append(made | dict.fromkeys(("total_size", "allocated_size", "active_size"), mib * MIB))

    def empty_cache(self) -> None:
        assert not self.capturing
        for each in [*self.segments]:
            if not each["allocated_size"] and not self.uses[each["segment_pool_id"]]:
                FREE(self.functions[each["segment_pool_id"]][1])(each["address"], each["total_size"], 0, None)
                self.segments.remove(each)

    def deregister(self, mem_pool: Any) -> None:
        if mem_pool not in self.registered:
            raise RuntimeError("not registered")
        self.registered.remove(mem_pool)


def installed() -> Caching:
    """Put a stand-in into PyTorch."""
    made, native, cuda = Caching(), torch._C, torch.cuda
    native._cuda_customAllocator = lambda *functions: functions
    native._cuda_beginAllocateCurrentThreadToPool = native._cuda_beginAllocateToPool = made.begin
    native._cuda_endAllocateToPool, native._cuda_releasePool = made.end, made.release
    cuda.MemPool, cuda.device = made.make_pool, lambda _device: nullcontext()
    cuda.memory_snapshot, cuda.empty_cache = lambda: made.segments, made.empty_cache
    cuda.is_current_stream_capturing = lambda: made.capturing
    cuda.get_allocator_backend = lambda: "native"
    group = SimpleNamespace(
        group_name="0", _get_backend=lambda _device: SimpleNamespace(deregister_mem_pool=made.deregister)
    )
    distributed.is_initialized = lambda: True
    distributed.distributed_c10d._world = SimpleNamespace(pg_map=[group])
    return made


def delete(*tensors: dict[str, Any]) -> None:
    """Delete tensors; their segments stay."""
    for each in tensors:
        each["allocated_size"] = each["active_size"] = 0


def refused(call: Callable[[], Any]) -> str:
    """Return the beginning of the error of a call, or `made`."""
    try:
        call()
    except (memtopo.Unsuitable, torch.OutOfMemoryError) as error:
        return " ".join([str(error).partition(" (")[0], *getattr(error, "__notes__", ())])
    return "made"


def regions(caching: Caching, pool: HeapPool) -> list[Any]:
    """Pools of nested regions, of the next one, of a graph, of a region in its capture, and of one after `free_unused`.

    And MiB before it, after one in the capture, and after it.
    """
    with pool.allocating():
        first = caching.tensor(2)
        with pool.allocating():
            second = caching.tensor(4)
    with pool.allocating():
        third = caching.tensor(8)
    graph = caching.tensor(16, pool.mem_pool.id)
    pool.free_unused()
    before = pool.heap.used // MIB
    delete(second, graph)
    caching.capturing = True
    pool.free_unused()
    with pool.allocating():
        captured = caching.tensor(1)
    caching.capturing = False
    during = pool.heap.used // MIB
    pool.free_unused()
    after = pool.heap.used // MIB
    with pool.allocating():
        fourth = caching.tensor(2)
    numbers = [each["segment_pool_id"][1] for each in (first, second, third, graph, captured, fourth)]
    delete(first, third, captured, fourth)
    pool.trim()
    return [numbers, before, during, after, pool.heap.used, caching.entered]


def limits(caching: Caching, pool: HeapPool) -> list[Any]:
    """Statistics, a region that begins when the limit is reached, and the reason of a failed allocation."""
    with pool.allocating():
        kept, other = caching.tensor(100), caching.tensor(150)
        delete(other)
    caching.add(8)
    found = [each // MIB for each in pool.statistics[1:]]
    with pool.allocating(), pool.allocating():
        after = pool.heap.used // MIB
        again = caching.tensor(150)
        delete(kept)

    def fail() -> None:
        with pool.allocating(), pool.allocating():
            caching.tensor(200)

    failed = refused(fail)
    delete(again)
    return [found, after, failed]


def threads(_caching: Caching, pool: HeapPool) -> list[Any]:
    """Regions of another thread while this one is in a region."""
    found: list[Any] = []

    def enter(*, every_thread: bool) -> None:
        with pools.REGIONS.using(pool.new_pool(), 0, every_thread=every_thread):
            found.append(pools.REGIONS.entered)

    def work() -> None:
        found.append(pools.REGIONS.entered)
        found.append(refused(lambda: pool.allocating().__enter__()))
        found.append(refused(lambda: enter(every_thread=True)))
        found.append(refused(lambda: enter(every_thread=False)))

    with pool.allocating():
        with pool.allocating():
            enter(every_thread=True)
        other = threading.Thread(target=work)
        other.start()
        other.join()
    return [*found, pools.REGIONS.entered]


def changes(caching: Caching, pool: HeapPool) -> list[Any]:
    """Sleeps: in a capture, with pools of graphs that are registered, after `trim` too, and of deleted tensors."""
    heap, first, second = pool.heap, pool.mem_pool, pool.new_pool()
    caching.tensor(2, first.id)
    with pool.allocating():
        deleted = caching.tensor(4)
        delete(deleted)
    caching.capturing = True
    found: list[Any] = [refused(heap.sleep)]
    caching.capturing = False
    caching.registered = [first, second]  # nothing is allocated in the second
    pool.trim()
    found += [refused(heap.sleep), refused(heap.sleep), heap.used // MIB]
    heap.wake()
    caching.tensor(2, second.id)
    with pool.allocating():
        delete(caching.tensor(4))
    found += [refused(heap.sleep), refused(heap.sleep), heap.used // MIB]
    heap.wake()
    return found


def outside(caching: Caching, pool: HeapPool) -> list[Any]:
    """Warnings of tensors outside of heaps, at the first change, at the next one, and with more of them."""
    with pool.allocating():
        caching.tensor(100)
    found = []
    for mib in (40, 40, 0, 60, 64):
        caching.add(mib)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pool.before_change()
        found.append([str(each.message)[:18] for each in caught])
    return found


def configurations(_caching: Caching, pool: HeapPool) -> list[Any]:
    """Values of variables, and the backend of PyTorch's allocator, with which a heap can be used or not."""
    found = [os.environ["NCCL_GRAPH_REGISTER"]]
    for value in ("False", "1"):
        os.environ["NCCL_GRAPH_REGISTER"] = value
        found.append(refused(lambda: HeapPool(pool.heap, 0))[:21])
    torch.cuda.get_allocator_backend = lambda: "cudaMallocAsync"
    return [*found, refused(lambda: HeapPool(pool.heap, 0))]


CASES = (regions, limits, threads, changes, outside, configurations)


def main() -> None:
    """Run each case in a fork."""
    for case in CASES:
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            run(case)
            os._exit(0)


def run(case: Callable[[Caching, HeapPool], list[Any]]) -> None:
    """Print what a case returns, in a layout of its own."""
    caching = installed()
    with memtopo.applied(SPEC, machine="h200x2") as layout:
        heap = layout.heap("weights")
        pool = heap.user(lambda: HeapPool(heap, 0))
        print(f"{case.__name__}: {case(caching, pool)}", flush=True)


if __name__ == "__main__":
    main()
