"""PyTorch's pools in heaps without a GPU: which pool is used, what is freed when, and what is refused."""

from __future__ import annotations

from pathlib import Path

from tests.hosts.releases import run

REGISTERED = (
    "the pool of heap 'weights' was registered with NCCL, in process group '0', whose peers would lose the memory"
)
NO_ROOM = (
    "CUDA out of memory. Tried to allocate 200 MiB memtopo: heap 'weights': 200 MiB cannot be allocated: "
    "106 MiB of its limit of 256 MiB are left; 150 MiB are allocated in it (hint: free some, or increase 'limit')"
)
OUTCOMES = {
    "regions": [[1, 2, 1, 3, 1, 4], 30, 32, 28, 0, []],
    "limits": [
        [250, 100, 150],
        100,
        NO_ROOM,
    ],
    "threads": [
        True,
        False,
        "another thread allocates in heap 'weights'",
        "another thread allocates in a pool at present, so one cannot be for every thread",
        True,
        "made",
        False,
    ],
    "changes": [
        "heap 'weights' cannot lose or get memory while a graph is captured",
        REGISTERED,
        "made",
        2,
        REGISTERED,
        "made",
        4,
    ],
    "outside": [[], ["tensors of 80 MiB "], [], [], ["tensors of 204 MiB"]],
    "configurations": [
        "0",
        "made",
        "NCCL_GRAPH_REGISTER=1",
        "PyTorch allocates by its backend 'cudaMallocAsync', which has no pools",
    ],
}
"""How each case of `pools_on_simulator.py` ends."""


def test_pools_are_used_freed_and_refused_as_documented() -> None:
    lines = run("torch_memory_saver", Path(__file__).with_name("pools_on_simulator.py")).splitlines()
    assert dict(line.split(": ", 1) for line in lines) == {name: str(found) for name, found in OUTCOMES.items()}
