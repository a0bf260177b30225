"""Pools of vLLM's allocator or of memtopo's, `own` or `memtopo`, on a GPU: prints what each step has left.

Nothing has a stand-in: PyTorch's tensors are in the allocator's pools, a CUDA graph is captured into one, and vLLM's
sleep-mode backend puts them to sleep. Segments of graphs are not printed: a capture while they are asleep takes free
ones of vLLM's own allocator, and others of memtopo's, which keeps a pool that is asleep as it is.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable

import torch
from vllm.device_allocator.cumem import CuMemAllocator
from vllm.device_allocator.sleep_mode_backend import CuMemBackend

MIB = 1 << 20
SIZES = {"weights": (512, 2, 30), "runtime": (4, 64), "kv_cache": (512,), "workspace": (128,), "default": (6,)}
"""Tensors of each tag, in MiB."""


class Host:
    """Tensors in the pools of an allocator, and a graph in that for graphs."""

    def __init__(self, kind: str) -> None:
        if kind == "memtopo":
            from memtopo.torch.vllm import ALLOCATOR

            CuMemAllocator.get_instance = staticmethod(lambda: ALLOCATOR)
        self.allocator = CuMemAllocator.get_instance()
        self.backend = CuMemBackend()
        self.tensors: list[tuple[str, int, torch.Tensor]] = []
        self.graphs: list[tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = []

    def allocate(self, tag: str) -> None:
        """Make the tensors of a tag, and one that is deleted before the pool is left."""
        with self.allocator.use_memory_pool(tag):
            for size in SIZES[tag]:
                number = len(self.tensors) + 1
                tensor = torch.full((size * MIB,), number % 251, dtype=torch.uint8, device=0)
                self.tensors.append((tag, number, tensor))
            deleted = torch.empty(40 * MIB, dtype=torch.uint8, device=0)
            del deleted

    def capture(self) -> None:
        """Capture a graph whose intermediate and result are in the pool for graphs."""
        source = torch.ones(8 * MIB, device=0)
        with self.allocator.cudagraph_pool() as pool:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = (source * 2 + 1).cumsum(0, dtype=torch.float64)
        self.graphs.append((graph, source, result))

    def replay(self) -> str:
        """Replay each graph, and say if its result is right."""
        right = []
        for number, (graph, source, result) in enumerate(self.graphs):
            source.fill_(number + 1)
            graph.replay()
            right.append(result[-1].item() == source.numel() * (2 * (number + 1) + 1))
        return f"graphs {right}"

    def write(self) -> None:
        """Fill each tensor with its number."""
        for _, number, tensor in self.tensors:
            tensor.fill_(number % 251)

    def fill(self) -> None:
        """Wake all, and fill each tensor."""
        self.backend.resume(None)
        self.write()

    def step(self, text: str, call: Callable[[], object]) -> None:
        """Do a step, and print the state of each tensor, or the error."""
        try:
            outcome = call() or ""
        except Exception as error:  # noqa: BLE001 it is what is compared
            outcome = f"raises {type(error).__name__}"
        torch.cuda.synchronize()
        data = self.allocator.pointer_to_data
        asleep = [each for each, about in data.items() if about.is_asleep]
        sizes = {each: about.handle[1] for each, about in data.items()}

        def state(number: int, tensor: torch.Tensor) -> str:
            address = tensor.data_ptr()
            if any(each <= address < each + sizes[each] for each in asleep):
                return "asleep"
            return "kept" if bool((tensor == number % 251).all()) else "lost"

        states = [f"{tag}:{state(number, tensor)}" for tag, number, tensor in self.tensors]
        segments = [(about.tag, about.is_asleep, about.handle[1] // MIB) for about in data.values()]
        by_tag = sorted(each for each in segments if each[0] != "cudagraph")
        print(f"{text} {outcome} | {self.backend.state()} | {' '.join(states)} | {by_tag}")

    def end(self) -> None:
        """End all tensors and graphs, and the pools."""
        self.backend.resume(None)
        self.tensors.clear()
        self.graphs.clear()
        gc.collect()
        torch.cuda.empty_cache()
        self.allocator.release_pools()


def sequences(host: Host) -> None:
    """Levels, tags in turn, discards, graphs, and a second time in one process."""
    for _ in range(2):
        for tag in SIZES:
            host.step(f"allocate {tag}", lambda tag=tag: host.allocate(tag))  # type: ignore[misc]
        host.step("capture", host.capture)
        host.step("replay", host.replay)
        for level in (1, 2):
            for tags in (["weights"], ["kv_cache"], None):
                host.step(f"sleep {level}", lambda level=level: host.backend.suspend(level))  # type: ignore[misc]
                host.step(f"wake {tags}", lambda tags=tags: host.backend.resume(tags))  # type: ignore[misc]
                host.step("wake", lambda: host.backend.resume(None))
                host.step("replay", host.replay)
                host.step("fill", host.fill)
        host.step("discard", lambda: host.backend.discard(("kv_cache", "workspace")))
        host.step("sleep 1", lambda: host.backend.suspend(1))
        host.step("capture asleep", host.capture)
        host.step("fill", host.fill)
        host.step("replay", host.replay)
        host.step("end", host.end)


def random_steps(host: Host, seed: int) -> None:
    """Random steps from a seed."""
    chosen = random.Random(seed)
    tags = [[], ["weights"], ["kv_cache"], ["runtime"], ["weights", "kv_cache"]]
    host.step(f"seed {seed}", lambda: host.allocate("weights"))
    steps: list[tuple[str, Callable[[], object]]] = [
        ("allocate", lambda: host.allocate(chosen.choice([*SIZES]))),
        ("capture", host.capture),
        ("sleep 1", lambda: host.backend.suspend(1)),
        ("sleep 2", lambda: host.backend.suspend(2)),
        ("wake", lambda: host.backend.resume(chosen.choice([*tags, None]))),
        ("discard", lambda: host.backend.discard(tuple(chosen.choice(tags)))),
        ("fill", host.fill),
    ]
    for _ in range(12):
        host.step(*chosen.choice(steps))
    host.step("fill", host.fill)
    host.step("replay", host.replay)
    host.step("end", host.end)


if __name__ == "__main__":
    torch.cuda.init()
    torch.ones(1, device=0)
    of_kind = Host(sys.argv[1])
    sequences(of_kind)
    for each in range(int(sys.argv[2]), int(sys.argv[3])):
        random_steps(of_kind, each)
