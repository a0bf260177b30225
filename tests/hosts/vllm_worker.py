"""vLLM's worker over one of two allocators, `own` or `memtopo`: prints what each step has left, the same for both.

The code of `Worker`, backends and allocators is real. Stand-ins are the GPU and PyTorch's pools, since PyTorch for a
CPU has none: vLLM's own allocator has host buffers in place of `cuMem*`, and memtopo's a simulated GPU.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch

sys.modules["vllm.cumem_allocator"] = None  # type: ignore[assignment]  # the C library needs a driver of CUDA

from vllm.plugins import load_general_plugins  # noqa: E402

PAGE = 2 << 20
TAGS = ("weights", "runtime", "kv_cache", "workspace", "cudagraph", "default")
FORMS: tuple[Any, ...] = (
    *(None, [], (), ["weights"], ["kv_cache"], ("weights",), ["kv_cache", "weights"], ["runtime"], ["other"]),
    *("weights", "kv_cache", "weights kv_cache", "", {"kv_cache": 1}, 1),
)
"""Arguments of `wake_up`, `discard` and `sleep` of the allocator, some of which are of a wrong type."""


POOLS: WeakValueDictionary[object, Any] = WeakValueDictionary()
"""Pools by the identifiers that a capture gets."""


class Own:
    """vLLM's own allocator, whose memory is host buffers."""

    def __init__(self) -> None:
        import vllm.device_allocator.cumem as own

        self.buffers: dict[int, Any] = {}
        self.full = False
        own.cumem_available, own.PIN_MEMORY = True, False
        own.create_and_map, own.unmap_and_release = self._map, self._unmap
        own.libcudart = SimpleNamespace(cudaMemcpy=lambda to, source, size: ctypes.memmove(to, source, size))
        own.get_pluggable_allocator = lambda *_: SimpleNamespace(_allocator=self)
        torch.cuda.memory.MemPool = OwnPool
        torch.cuda.memory.use_mem_pool = pool_in_use
        self.allocator = own.CuMemAllocator.get_instance()
        OwnPool.memory = self

    def _map(self, _handle: tuple[int, int, int, int]) -> None:
        if self.full:
            raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:1")

    def _unmap(self, handle: tuple[int, int, int, int]) -> None:
        ctypes.memset(handle[2], 0xEE, handle[1])

    @contextmanager
    def full_gpu(self) -> Iterator[None]:
        self.full = True
        yield
        self.full = False

    def write(self, address: int, byte: int) -> None:
        ctypes.memset(address, byte, PAGE)

    def read(self, address: int) -> int:
        return ctypes.c_ubyte.from_address(address + PAGE - 1).value


class OwnPool:
    """Pool of PyTorch whose segments are host buffers, with the callbacks of vLLM's allocator."""

    memory: Own
    current: list[OwnPool] = []  # noqa: RUF012 of the process

    def __init__(self, _allocator: object) -> None:
        self.segments: dict[int, int] = {}
        self.id = (0, id(self))
        POOLS[self.id] = self

    def allocate(self) -> int:
        allocator, buffer = self.memory.allocator, (ctypes.c_ubyte * PAGE)()
        address = ctypes.addressof(buffer)
        self.memory.buffers[address] = buffer
        allocator.python_malloc_callback((0, PAGE, address, 0))
        self.segments[address] = PAGE
        return address

    def delete(self, address: int) -> None:
        self.segments[address] = 0

    def snapshot(self) -> list[dict[str, int]]:
        return [{"address": each, "allocated_size": size} for each, size in self.segments.items()]

    def __del__(self) -> None:
        for each, used in self.segments.items():
            if not used and each in self.memory.allocator.pointer_to_data:
                self.memory.allocator.python_free_callback(each)


@contextmanager
def pool_in_use(pool: Any) -> Iterator[None]:
    OwnPool.current.append(pool)
    try:
        yield
    finally:
        OwnPool.current.pop()


class Memtopo:
    """memtopo's allocator, whose heaps are on a simulated GPU."""

    def __init__(self) -> None:
        from memtopo.api import joined

        torch.cuda.get_device_properties = lambda _: SimpleNamespace(total_memory=143771 << 20)
        engine: Any = import_module("memtopo.torch.engine")
        engine.join = functools.partial(joined.join, machine="h200x2")
        engine.pool = functools.cache(MemtopoPool)
        from memtopo.torch.vllm import ALLOCATOR

        self.allocator, self.engine = ALLOCATOR, engine.ENGINE

    @contextmanager
    def full_gpu(self, left: int = 0) -> Iterator[None]:
        """Take all memory of the GPU but some pages."""
        heap, taken = self.engine.pool("test", "other", 0).heap, []
        for size in (1 << 30, PAGE):
            with suppress(MemoryError):
                while True:
                    taken.append(heap.allocate(size))
        for _ in range(left):
            heap.free(taken.pop())
        yield
        for each in taken:
            heap.free(each)

    def write(self, address: int, byte: int) -> None:
        self._bytes(address)[:] = byte

    def read(self, address: int) -> int:
        return int(self._bytes(address)[-1])

    def _bytes(self, address: int) -> Any:
        import numpy as np

        return np.from_dlpack(self.heap(address).view(address))

    def heap(self, address: int) -> Any:
        """Heap of a tensor, of whichever drop-in."""
        (found,) = (
            heap
            for owner in ("vllm", "saver")
            for _, heap in self.engine.heaps(owner)
            if heap.address <= address < heap.address + heap.size
        )
        return found


class MemtopoPool:
    """Pool of PyTorch whose segments are allocations of a heap."""

    def __init__(self, layout: Any, name: str) -> None:
        self.heap = layout.heap(name)
        self.deleted: list[int] = []
        self.mem_pool = self
        self.id = (0, id(self))
        POOLS[self.id] = self

    @contextmanager
    def allocating(self) -> Iterator[MemtopoPool]:
        with pool_in_use(self):
            yield self

    def allocate(self) -> int:
        address: int = self.heap.allocate(PAGE)
        return address

    def delete(self, address: int) -> None:
        self.deleted.append(address)

    def free_unused(self) -> None:
        while self.deleted:
            self.heap.free(self.deleted.pop())

    trim = free_unused


class Host:
    """A worker of vLLM with tensors of a page each, by tag; every step prints a line."""

    def __init__(self, kind: str) -> None:
        import vllm.platforms
        from vllm.v1.worker import gpu_worker

        platform: Any = type(vllm.platforms.current_platform)
        platform.is_cuda_alike = lambda _: True
        platform.is_cpu = platform.is_xpu = platform.is_rocm = lambda _: False
        torch.cuda.current_device = lambda: 0
        torch.accelerator.synchronize = lambda *_: None
        torch.accelerator.empty_cache = lambda: None
        torch.accelerator.get_memory_info = lambda *_: (1 << 30, 2 << 30)
        self.memory: Any = Own() if kind == "own" else Memtopo()
        self.worker_class = gpu_worker.Worker
        self.backend = "cumem" if kind == "own" else "memtopo"
        self.start()

    def start(self) -> None:
        """Start a worker, without what it would load."""
        model = SimpleNamespace(
            sleep_mode_backend=self.backend, enable_cumem_allocator=True, enable_sleep_mode=True,
            enable_nccl_comm_suspend=False, sleep_preserve_parameter_names=[],
        )  # fmt: skip
        runner = SimpleNamespace(model=torch.nn.Linear(2, 2), shutdown=lambda: None)
        elastic = SimpleNamespace(shutdown=lambda: None)
        self.worker: Any = object.__new__(self.worker_class)
        vars(self.worker).update(
            vllm_config=SimpleNamespace(model_config=model), model_config=model, _sleep_mode_backend=None,
            _sleep_saved_parameters={}, _sleep_saved_buffers={}, _sleep_saved_draft_buffers={}, model_runner=runner,
            profiler=None, synchronize_device=lambda: None, get_draft_model=lambda: None, elastic_ep_executor=elastic,
        )  # fmt: skip
        self.tensors: dict[int, tuple[str, int, Any]] = {}

    def allocate(self, tag: str, number: int = 1, *, deleted: int = 0) -> None:
        """Make tensors in the pool of a tag, of which some end before the pool is left."""
        with self.worker._maybe_get_memory_pool_context(tag):
            self.make(tag, number)
            for address in [*self.tensors][:-1][-deleted or len(self.tensors) :]:
                if self.tensors[address][2] is OwnPool.current[-1]:
                    self.tensors.pop(address)[2].delete(address)

    def capture(self) -> None:
        """Capture a graph, which vLLM does in the pool that it gets."""
        from vllm.compilation.cudagraph_pool import capture_pool

        config: Any = SimpleNamespace(use_cumem_cudagraph_pool=True)
        with capture_pool(None, config) as identifier:
            found = POOLS[identifier]
            with pool_in_use(found):
                self.make("cudagraph", 1)

    def make(self, tag: str, number: int) -> None:
        """Make tensors in the pool that is in use."""
        pool: Any = OwnPool.current[-1]
        for _ in range(number):
            address = pool.allocate()
            self.tensors[address] = tag, len(self.tensors) % 100 + 1, pool
            self.memory.write(address, self.tensors[address][1])

    def step(self, text: str, call: Callable[[], object]) -> None:
        """Do a step, and print the state of all tensors, or its error."""
        try:
            call()
            outcome = ""
        except Exception as error:  # noqa: BLE001 it is what is compared
            outcome = f" raises {type(error).__name__}: {str(error)[:11]}"
        asleep = {address for address, data in self.memory.allocator.pointer_to_data.items() if data.is_asleep}
        states = [
            f"{tag}:{'asleep' if address in asleep else 'kept' if self.memory.read(address) == byte else 'lost'}"
            for address, (tag, byte, _) in self.tensors.items()
        ]
        usage = self.memory.allocator.get_current_usage() // PAGE
        print(f"{text}{outcome} | {self.worker.sleep_mode_backend.state()} {usage} | {' '.join(states)}")

    def fill(self) -> None:
        """Wake all up, and write all tensors."""
        self.worker.wake_up(None)
        for address, (_, byte, _) in self.tensors.items():
            self.memory.write(address, byte)

    def end(self) -> None:
        """End the tensors and the worker."""
        while self.tensors:
            address, (_, _, pool) = self.tensors.popitem()
            pool.delete(address)
        del pool
        self.worker.shutdown()
        gc.freeze()  # which the shutdown undoes


def given_sequences(host: Host) -> None:
    """Those that engines and trainers make: levels, tags in turn, discards, errors, a second worker."""
    worker, allocator = host.worker, host.memory.allocator
    for tag in TAGS:
        host.step(f"allocate {tag}", lambda tag=tag: host.capture() if tag == "cudagraph" else host.allocate(tag, 2))  # type: ignore[misc]
    host.step("quantize", lambda: host.allocate("runtime", 4, deleted=2))
    host.step("weights again", lambda: host.allocate("weights"))
    for level in (1, 2, 3, 0):
        for first, second in ((["weights"], ["kv_cache"]), (["kv_cache"], ["weights"])):
            host.step(f"sleep {level}", lambda level=level: worker.sleep(level))  # type: ignore[misc]
            host.step(f"wake {first}", lambda first=first: worker.wake_up(first))  # type: ignore[misc]
            host.step(f"wake {second}", lambda second=second: worker.wake_up(second))  # type: ignore[misc]
            host.step("fill", host.fill)
    for form in FORMS:
        host.step(f"sleep {form!r}", lambda form=form: allocator.sleep(form))  # type: ignore[misc]
        host.step(f"wake {form!r}", lambda form=form: allocator.wake_up(form))  # type: ignore[misc]
        host.step("fill", host.fill)
        host.step(f"discard {form!r}", lambda form=form: worker.discard(form))  # type: ignore[misc]
        host.step("sleep 1", lambda: worker.sleep(1))
        host.step(f"discard {form!r}", lambda form=form: allocator.discard(form))  # type: ignore[misc]
        host.step("fill", host.fill)
    host.step("sleep 1", lambda: worker.sleep(1))
    with host.memory.full_gpu():
        host.step("wake with no memory", lambda: worker.wake_up(None))
    host.step("wake", lambda: worker.wake_up(None))
    host.step("fill", host.fill)
    host.step("sleep 1", lambda: worker.sleep(1))
    host.step("runtime asleep", lambda: host.allocate("runtime"))
    host.step("capture asleep", host.capture)
    host.step("sleep 2", lambda: worker.sleep(2))
    host.step("fill", host.fill)
    host.step("end", host.end)
    host.start()
    host.step("second worker", lambda: host.allocate("weights"))
    host.step("sleep 2", lambda: host.worker.sleep(2))
    host.step("fill", host.fill)
    host.step("end", host.end)


def random_sequence(host: Host, seed: int) -> None:
    """Random steps from a seed."""
    chosen = random.Random(seed)
    host.start()
    host.step(f"seed {seed}", lambda: host.allocate("weights", 2))
    for _ in range(20):
        host.step(*random_step(host, chosen))
    host.step("fill", host.fill)
    host.step("end", host.end)


def random_step(host: Host, chosen: random.Random) -> tuple[str, Callable[[], object]]:
    form = chosen.choice(FORMS)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("allocate", lambda: host.allocate(chosen.choice(TAGS[1:]), 3, deleted=1)),
        ("capture", host.capture),
        ("sleep 1", lambda: host.worker.sleep(1)),
        ("sleep 2", lambda: host.worker.sleep(2)),
        ("fill", host.fill),
        *[(f"wake {form!r}", lambda: host.worker.wake_up(form))] * 3,
        (f"discard {form!r}", lambda: host.worker.discard(form)),
        (f"sleep {form!r}", lambda: host.memory.allocator.sleep(form)),
    ]
    return chosen.choice(steps)


if __name__ == "__main__":
    os.environ |= {"MEMTOPO_VLLM": "1"} if sys.argv[1] == "memtopo" else {}
    load_general_plugins()
    worker = Host(sys.argv[1])
    gc.freeze()  # the allocators collect garbage at each step, and vLLM's modules have many objects
    given_sequences(worker)
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        random_sequence(worker, number)
