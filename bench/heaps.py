"""PyTorch in heaps: allocations, sleep and wake, and a training step, beside PyTorch's own and torch_memory_saver.

4 GiB of weights in segments of 124 MiB. The copies alone are one for each segment, and the calls alone those of the
driver that give the memory back, and those that create, map and grant it again. torch_memory_saver is measured where it
is installed, in its mode `torch`, as its default is and with retained backups.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import memtopo
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve

SEGMENTS, SIZE = 33, 124 << 20
ROUNDS = 9
SPEC = """
memtopo: 1
name: bench-heaps
heaps: {weights: {location: gpu0, size: 64GiB}, scratch: {location: gpu0, size: 64GiB}}
access: {weights: {gpu0: rw}, scratch: {gpu0: rw}}
states: {level-1: {offload: {weights: pinned}, drop: [scratch]}}
"""


def main() -> None:
    """Print times in ms, and the median ratios of the rounds."""
    try:
        local = resolve("local")
        import torch

        import memtopo.torch
    except (Unavailable, ImportError) as error:
        print(f"not run: {error}")
        return
    print(f"{local.machine.devices[0].name}, PyTorch {torch.__version__}, median of {ROUNDS} rounds")
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "heaps.yaml")
        spec.write_text(SPEC)
        with memtopo.applied(spec) as layout:
            _allocations(torch, layout)
            _sleep(torch, layout)
            _steps(torch, layout)


def _allocations(torch: Any, layout: Any) -> None:
    def timed(allocate: Callable[[], Any]) -> float:
        kept, times = [], []
        for _ in range(40):
            torch.cuda.synchronize()
            start = time.perf_counter()
            kept.append(allocate())
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def empty() -> Any:
        return torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

    ratios = []
    for _ in range(ROUNDS):
        own = timed(empty)
        torch.cuda.empty_cache()
        with memtopo.torch.allocating(layout, "scratch") as pool:
            in_heap = timed(empty)
        pool.trim()
        ratios.append(in_heap / own)
    print(f"64 MiB in a heap {in_heap * 1e6:.0f} µs, by cudaMalloc {own * 1e6:.0f} µs")
    _ratio("allocation to cudaMalloc by PyTorch", ratios, 1.0)


def _sleep(torch: Any, layout: Any) -> None:
    with memtopo.torch.allocating(layout, "weights"):
        weights = [torch.full((SIZE,), i, dtype=torch.uint8, device="cuda") for i in range(SEGMENTS)]
    host = [torch.empty(SIZE, dtype=torch.uint8, pin_memory=True) for _ in weights]
    heap = layout.heap("weights")

    def copy(*, out: bool) -> None:
        for on_gpu, on_host in zip(weights, host, strict=True):
            (on_host if out else on_gpu).copy_(on_gpu if out else on_host, non_blocking=True)

    def refill() -> None:
        """Check the bytes, and fill them anew where the calls alone have dropped them."""
        found = [int(each[-1]) for each in weights]
        assert found in ([*range(SEGMENTS)], [0] * SEGMENTS), "bytes were lost"
        for i, each in enumerate(weights):
            each.fill_(i)

    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "copies": (lambda: copy(out=True), lambda: copy(out=False)),
        "calls": (lambda: heap.sleep(None), heap.wake),
        "memtopo": (lambda: layout.switch("level-1"), lambda: layout.switch("awake")),
        "memtopo heap": (heap.sleep, heap.wake),
    }
    with _savers(torch) as savers:
        times = _in_turn(torch, {**ways, **savers}, refill)
    for part, name in enumerate(("sleep", "wake")):
        medians = {way: statistics.median(each[part]) * 1e3 for way, each in times.items()}
        print(f"{name:5}", ", ".join(f"{way} {ms:.1f}" for way, ms in medians.items()), "ms")
        bounds = [max(a, b) for a, b in zip(times["copies"][part], times["calls"][part], strict=True)]
        _ratio(f"{name} to the larger of copies and calls", _over(times["memtopo"][part], bounds), 1.15)
        if savers:
            _ratio(f"{name} to saver", _over(times["memtopo"][part], times["saver"][part]), 0.5)
            ratios = _over(times["memtopo heap"][part], times["saver, retaining"][part])
            _ratio(f"{name} of a heap to saver, retaining", ratios, (0.97, 0.98)[part])


@contextmanager
def _savers(torch: Any) -> Iterator[dict[str, tuple[Callable[[], Any], Callable[[], Any]]]]:
    """Sleep and wake of torch_memory_saver with as much memory, in both of its settings; none where it is missing."""
    try:
        from torch_memory_saver import torch_memory_saver as saver
    except ImportError:
        yield {}
        return
    saver.hook_mode = "torch"
    with saver.region(tag="weights", enable_cpu_backup=True):
        kept = [torch.full((SIZE,), i, dtype=torch.uint8, device="cuda") for i in range(SEGMENTS)]

    def wake(*, retain: bool) -> None:
        saver.retain_cpu_backup = retain
        saver.resume("weights")

    yield {
        "saver": (lambda: saver.pause("weights"), lambda: wake(retain=False)),
        "saver, retaining": (lambda: saver.pause("weights"), lambda: wake(retain=True)),
    }
    del kept


def _in_turn(
    torch: Any, ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], refill: Callable[[], None]
) -> dict[str, tuple[list[float], list[float]]]:
    """Times of the two parts of each way, in rounds, after one round that does not count."""
    times: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in ways}
    for _ in range(ROUNDS + 1):
        for way, parts in ways.items():
            if way.startswith("saver"):  # whose backup the setting of the round before has left
                for part in parts:
                    part()
            for found, part in zip(times[way], parts, strict=True):
                torch.cuda.synchronize()
                time.sleep(0.05)  # memory that was released is cleared, for which a grant would wait (fact 91)
                start = time.perf_counter()
                part()
                torch.cuda.synchronize()
                found.append(time.perf_counter() - start)
            refill()
    return {way: (out[1:], back[1:]) for way, (out, back) in times.items()}


def _steps(torch: Any, layout: Any) -> None:
    """Times of a training step of a model whose memory is in a heap, and of the same outside, in turn."""

    def step_of(place: Any) -> Callable[[], None]:
        with place():
            layers = [torch.nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(24)]
            model = torch.nn.Sequential(*layers)
            optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
            batch = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            with place():
                optimiser.zero_grad()
                model(batch).square().mean().backward()
                optimiser.step()

        return step

    from contextlib import nullcontext

    ways = {"inside": step_of(lambda: memtopo.torch.allocating(layout, "scratch")), "outside": step_of(nullcontext)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, step in ways.items():
            step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                step()
            torch.cuda.synchronize()
            times[way].append(time.perf_counter() - start)
    _ratio("training step inside a heap to outside", _over(times["inside"], times["outside"]), 1.01)


def _over(times: list[float], others: list[float]) -> list[float]:
    return [a / b for a, b in zip(times, others, strict=True)]


def _ratio(what: str, ratios: list[float], most: float) -> None:
    low, high = min(ratios), max(ratios)
    print(f"{what}: {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}; at most {most:.2f})", flush=True)


if __name__ == "__main__":
    main()
