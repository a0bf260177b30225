"""memtopo in the place of torch_memory_saver on a real GPU: captured graphs, the cache in a region, and full GPUs."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")

from memtopo.torch.engine import ENGINE  # noqa: E402 after PyTorch was found
from memtopo.torch.saver import torch_memory_saver as saver  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
FILL = """
import torch, sys
kept = torch.empty({size}, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("full", flush=True)
sys.stdin.read()
"""


def used(tag: str) -> int:
    """MiB of the allocations with a tag."""
    return sum(heap.used for key, heap in ENGINE.heaps("saver") if key.tag == tag) // MIB


def captured(tag: str, x: Any, factor: int, pool: Any) -> tuple[Any, Any]:
    """A graph of a mean over 256 MiB of intermediate values, and its output."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (x * factor).mean()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(cuda_graph=graph, pool=pool, tag=tag, enable_cpu_backup=True):
        out = (x * factor).mean()
    return graph, out


@pytest.mark.parametrize(("shared", "most"), [(True, 400), (False, 700)])
def test_memory_of_graphs_is_paused_and_those_of_one_pool_share_it(shared: bool, most: int) -> None:
    tag, x = f"graphs-{shared}", torch.ones(64 * MIB, device="cuda")
    pool = torch.cuda.graph_pool_handle() if shared else None
    graphs = [captured(tag, x, factor, pool) for factor in (1, 2)]
    assert 256 <= used(tag) <= most
    for _ in range(2):
        for graph, _out in graphs:
            graph.replay()
        assert [float(out) for _, out in graphs] == [1.0, 2.0]
        before = torch.cuda.mem_get_info()[0]
        saver.pause(tag)
        assert torch.cuda.mem_get_info()[0] - before >= 256 * MIB
        saver.resume(tag)
    del graphs, graph, _out
    gc.collect()
    torch.cuda.empty_cache()
    assert used(tag) == 0


def test_a_graph_shares_the_pool_of_another_one() -> None:
    x = torch.ones(MIB, device="cuda")
    first, one = captured("chained", x, 1, None)
    second, two = captured("chained", x, 2, first.pool())
    assert first.pool() == second.pool()
    first.replay()
    second.replay()
    assert (float(one), float(two)) == (1.0, 2.0)


def test_memory_without_tensors_is_freed_when_a_region_ends() -> None:
    """With it, the pool of the next region is another one; without any, regions share a pool."""
    with saver.region("emptied"):
        kept = torch.full((100 * MIB,), 3, dtype=torch.uint8, device="cuda")
        torch.empty(500 * MIB, dtype=torch.uint8, device="cuda")
        assert used("emptied") >= 600
    assert used("emptied") <= 102
    small = []
    for _ in range(20):
        with saver.region("emptied"):
            small.append(torch.ones(MIB, dtype=torch.uint8, device="cuda"))
    assert used("emptied") <= 102 + 22
    assert bool((kept == 3).all())


def test_a_resume_without_room_loses_nothing_and_pytorchs_cache_is_no_obstacle() -> None:
    with saver.region("full", enable_cpu_backup=True):
        kept = torch.full((4 * GIB,), 5, dtype=torch.uint8, device="cuda")
    saver.pause("full")
    size = torch.cuda.mem_get_info()[0] - 2 * GIB
    other = subprocess.Popen(
        [sys.executable, "-c", FILL.format(size=size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout
    assert other.stdout.readline() == "full\n"
    with pytest.raises(torch.OutOfMemoryError, match="stays asleep"):
        saver.resume("full")
    other.communicate("")
    cached = torch.empty(torch.cuda.mem_get_info()[0] - GIB, dtype=torch.uint8, device="cuda")
    del cached
    saver.resume("full")
    assert bool((kept == 5).all())
