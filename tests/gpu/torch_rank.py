"""Rank of two: collectives on tensors of a heap, before and after a sleep in which other memory takes its place.

python torch_rank.py eager|graph|pool|own|another fd|none; prints `right`.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import distributed as dist

import memtopo
import memtopo.torch

N = 16 << 20


def main(how: str, handles: str) -> None:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=device)
    gpu = f"gpu{rank}"
    heap = {"location": gpu, "size": "8GiB"} | ({"handles": "fd"} if handles == "fd" else {})
    spec = {"memtopo": 1, "name": f"rank{rank}-{os.getpid()}", "heaps": {"h": heap}, "access": {"h": {gpu: "rw"}}}
    with memtopo.applied(spec) as layout:
        check(layout, device, how, kept=how in {"own", "another"} and handles == "none")
    dist.destroy_process_group()
    sys.stdout.write("right\n")


def check(layout: Any, device: torch.device, how: str, *, kept: bool) -> None:
    """Collectives are right before and after a sleep.

    `kept`: NCCL keeps what it could not export for its peer, which is the tensor that collectives write to.
    """
    pool, heap = memtopo.torch.pool(layout, "h"), layout.heap("h")
    mem_pool = pool.new_pool() if how == "another" else pool.mem_pool
    with torch.cuda.use_mem_pool(mem_pool) if how in {"own", "another"} else pool.allocating():
        own, both = torch.zeros(N, device=device), torch.zeros(2 * N, device=device)
    if how in {"pool", "own", "another"}:
        dist.distributed_c10d._get_default_group()._get_backend(device).register_mem_pool(mem_pool)

    def work() -> None:
        dist.all_gather_into_tensor(both, own)
        dist.all_reduce(own)

    work()
    graph = torch.cuda.CUDAGraph() if how == "graph" else None
    if graph:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    for value in (5.0, 7.0):
        own.fill_(value + dist.get_rank())
        both.zero_()
        dist.barrier()
        (graph.replay if graph else work)()
        torch.cuda.synchronize()
        found = [
            bool(each)
            for each in ((both[:N] == value).all(), (both[N:] == value + 1).all(), (own == 2 * value + 1).all())
        ]
        assert all(found), (value, found)
        dist.barrier()
        if value == 5.0:
            if how in {"own", "another"}:
                with pytest.raises(memtopo.Unsuitable, match="was registered with NCCL"):
                    heap.sleep()
                dist.barrier()  # both have ended their registration, by which each holds memory of the other
            with pytest.warns(memtopo.MemoryHeld) if kept else nullcontext():
                sleep_and_wake(heap, both.nbytes if kept else 0)
            dist.barrier()


def sleep_and_wake(heap: Any, kept: int) -> None:
    before, used = torch.cuda.mem_get_info()[0], heap.used - kept
    heap.sleep()
    freed = torch.cuda.mem_get_info()[0] - before
    assert freed >= used, (freed, used)
    other = torch.full((used,), 0x5A, dtype=torch.uint8, device="cuda")
    heap.wake()
    del other


main(*sys.argv[1:])
