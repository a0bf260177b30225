"""A rank of torchrun: a joined layout beside NCCL, whose captured graphs are replayed after sleep and wake.

Each rank writes its row of the all-reduce buffer by one graph, and all rows are summed by another one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import memtopo

SPEC = Path(__file__).parents[2] / "specs" / "tensor-parallel-server.yaml"


def main() -> None:
    """Join with the other rank; a line says that everything was as expected."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    require_nccl(world)
    with memtopo.join(SPEC, memtopo.rank(), timeout="120s") as layout:
        work(layout, rank, world)
    assert layout.report
    require_nccl(world)
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} of {world}: {layout.report.outcome}\n")


def require_nccl(world: int) -> None:
    """Reduce by NCCL."""
    ones = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(ones)
    assert float(ones.sum()) == world * ones.numel()


def work(layout: Any, rank: int, world: int) -> None:
    """Capture both graphs, and replay them, before and after a sleep. No tensor of the layout is left."""
    weights = torch.from_dlpack(layout.range("weights", dtype="float32"))
    rows = torch.from_dlpack(layout.range("all-reduce", dtype="float32", shape=(world, -1)))
    found = torch.zeros(rows.shape[1], device="cuda")
    weights.fill_(rank + 1)
    publish = captured(lambda: rows[rank].copy_(weights[: rows.shape[1]]))
    reduce = captured(lambda: torch.sum(rows, 0, out=found))
    address, expected = weights.data_ptr(), world * (world + 1) / 2
    for state in ("awake", "level-1", "weights-only"):
        if state != "awake":
            rows.zero_()  # before any rank sleeps: the buffers stay
            found.zero_()
            for each in (state, "awake"):
                layout.switch(each)
                assert layout.state == each
                dist.barrier()  # so that no rank requests the next state before all have requested this one
            assert layout.address("weights") == address
        replayed(publish)
        replayed(reduce)
        assert found.unique().tolist() == [expected], (state, found.unique())
        require_nccl(world)


def captured(calls: Any) -> torch.cuda.CUDAGraph:
    """Capture calls in a graph, after they were made once."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a thread of NCCL queries events meanwhile
        calls()
    return graph


def replayed(graph: torch.cuda.CUDAGraph) -> None:
    """Replay a graph in all ranks, and wait for all."""
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()


if __name__ == "__main__":
    main()
