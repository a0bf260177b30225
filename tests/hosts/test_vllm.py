"""memtopo in vLLM: the real worker, backends, allocator and plugins of a release, on a simulated GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts.releases import run

FOLDER = Path(__file__).parent
STARTS = {
    "names imported before": "memtopo.torch.vllm True",
    "graphs, memtopo": "True memtopo",
    "graphs, cumem": "True cumem",
    "graphs, not asked for": "False memtopo",
    "variables on Ray": "['MEMTOPO_RETAIN_HOST_COPIES', 'MEMTOPO_VLLM', 'OF_THE_USER']",
    "worker": "started",
    "worker without the variable": "Unsuitable: sleep_mode_backend is 'memtopo', and a worker has no MEMTOPO_VLLM=1",
    "worker with the variable at 0": "Unsuitable: sleep_mode_backend is 'memtopo', and a worker has no MEMTOPO_VLLM=1",
    "worker of cumem without the variable": "started",
    "instance in use": "Unsuitable: vLLM's own allocator is in use already",
    "function replaced": "Unsuitable: vLLM's get_mem_allocator_instance has been replaced by contextlib",
    "function replaced without the variable": "started",
    "replaced later": "Unsuitable: vLLM's CuMemAllocator.get_instance has been replaced by contextlib",
    "method of a later release": "Unsuitable: vLLM 0.33.0 has release_host_memory in its allocator",
    "name of another release": "Unsuitable: memtopo cannot replace the allocator of vLLM 0.33.0: cannot import name",
}
"""How each start of `vllm_plugin.py` ends."""

MEMORY = {
    "host copies": "weights:kept freed weights:kept freed",
    "retained host copies": "weights:kept retained weights:kept retained",
    "expandable segments": "expandable_segments:False,max_split_size_mb:512 "
    "expandable_segments:True,max_split_size_mb:512",
    "partial wake": "CUDA Error: heap 'runtime-g "
    "weights:kept weights:kept runtime:asleep runtime:asleep kv_cache:asleep kv_cache:asleep | "
    "weights:kept weights:kept runtime:kept runtime:kept kv_cache:asleep kv_cache:asleep",
    "two drop-ins": "weights:asleep saver:kept | weights:kept saver:asleep | weights:kept saver:lost | "
    "weights-gpu0 | weights-gpu0-2",
}
"""How each case of `vllm_memory.py` ends."""


def outcomes(program: str) -> dict[str, str]:
    """What a program has printed, by case."""
    lines = run("vllm", FOLDER / program).splitlines()
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.timeout(1800)  # the first time, the release is downloaded
def test_every_step_leaves_what_it_leaves_with_the_own_allocator_of_vllm() -> None:
    seeds = ("0", "25")
    with ThreadPoolExecutor(2) as both:
        own, ours = both.map(lambda kind: run("vllm", FOLDER / "vllm_worker.py", kind, *seeds), ("own", "memtopo"))
    assert ours.splitlines() == own.splitlines()
    assert len(own.splitlines()) > 600


@pytest.mark.timeout(1800)
def test_a_start_with_the_plugin_is_right_or_fails_before_memory_is_allocated() -> None:
    found = outcomes("vllm_plugin.py")
    assert {name: found[name][: len(ending)] for name, ending in STARTS.items()} == STARTS


@pytest.mark.timeout(1800)
def test_host_copies_failed_wakes_and_another_drop_in_lose_no_bytes() -> None:
    assert outcomes("vllm_memory.py") == MEMORY


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_every_step_on_a_gpu_leaves_what_it_leaves_with_the_own_allocator_of_vllm() -> None:
    own, ours = (run("vllm", FOLDER / "vllm_on_gpu.py", kind, "0", "8") for kind in ("own", "memtopo"))
    assert ours.splitlines() == own.splitlines()
    assert len(own.splitlines()) > 150
