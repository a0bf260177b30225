"""PyTorch in heaps on a real GPU: where tensors land, what a sleep frees and keeps, and how a process ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.api.errors import Unsuitable
from tests.helpers.specs import ROOT

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")

import memtopo.torch  # noqa: E402 after PyTorch was found

M, G = 1 << 20, 1 << 30


def spec(name: str = "torch", gpu: str = "gpu0", **weights: str) -> dict[str, Any]:
    heap = {"location": gpu, "size": "16GiB"}
    return {
        "memtopo": 1,
        "name": name,
        "heaps": {"weights": heap | weights, "cache": heap},
        "access": {"weights": {gpu: "rw"}, "cache": {gpu: "rw"}},
        "states": {"level-1": {"offload": {"weights": "pinned"}, "drop": ["cache"]}},
    }


@pytest.fixture
def layout() -> Iterator[Any]:
    torch.zeros(1, device="cuda")
    with memtopo.applied(spec()) as found:
        yield found
    assert found.report
    assert found.report.outcome == "ok"
    gc.collect()
    torch.cuda.empty_cache()


def inside(layout: Any, heap: str, *tensors: Any) -> bool:
    found = layout.heap(heap)
    return all(found.address <= each.data_ptr() < found.address + found.size for each in tensors)


def made(layout: Any, heap: str, size: int = 8 * M, device: str = "cuda") -> Any:
    with memtopo.torch.allocating(layout, heap):
        return torch.full((size,), 7, dtype=torch.uint8, device=device)


def test_a_region_inside_others_allocates_in_its_own_heap_whichever_they_are_of(layout: Any) -> None:
    own = torch.cuda.MemPool()
    with memtopo.torch.allocating(layout, "weights"), memtopo.torch.allocating(layout, "cache"):
        weights, cache = made(layout, "weights"), torch.ones(M, device="cuda")
        with torch.cuda.use_mem_pool(own):
            again, outside = made(layout, "weights"), torch.ones(M, device="cuda")
    assert inside(layout, "weights", weights, again)
    assert inside(layout, "cache", cache)
    assert not inside(layout, "cache", outside)
    layout.switch("level-1")
    layout.switch("awake")
    assert bool((weights == 7).all() and (again == 7).all())


def test_gradients_of_backward_and_tensors_of_other_threads_are_in_the_heap(layout: Any) -> None:
    with memtopo.torch.allocating(layout, "weights"):
        model = torch.nn.Linear(1024, 1024, device="cuda")
        model(torch.ones(4, 1024, device="cuda")).sum().backward()
    assert inside(layout, "weights", *(each.grad for each in model.parameters()))
    others: list[Any] = []

    def work() -> None:
        others.append(torch.ones(M, device="cuda"))
        others.append(made(layout, "cache"))

    with memtopo.torch.allocating(layout, "weights", every_thread=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert inside(layout, "weights", others[0])
    assert inside(layout, "cache", others[1])


def test_a_switch_tells_what_is_outside_of_heaps(layout: Any) -> None:
    kept = made(layout, "weights")
    outside = [torch.empty(n << 30, dtype=torch.uint8, device="cuda") for n in (1, 2)]
    with pytest.warns(memtopo.torch.OutsideHeaps, match=r"3(\.0)? GiB on gpu0.*outside of heaps.*every_thread=True"):
        layout.switch("level-1")
    layout.switch("awake")
    del outside, kept


@pytest.mark.parametrize("current", [0, 1])
def test_a_heap_is_of_its_own_gpu_whichever_is_current(current: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with memtopo.applied(spec("second", "gpu1")) as layout, torch.cuda.device(current):
        with memtopo.torch.allocating(layout, "weights") as pool:
            there, here = torch.ones(8 * M, device="cuda:1"), torch.ones(8 * M, device="cuda:0")
        assert inside(layout, "weights", there)
        assert not inside(layout, "weights", here)
        layout.switch("level-1")
        layout.switch("awake")
        assert bool((there == 1).all())
        del there
        pool.trim()
        assert layout.heap("weights").used == 0


def test_what_is_deleted_gets_no_memory_again(layout: Any) -> None:
    first, second, third = (made(layout, "weights", 64 * M) for _ in range(3))
    layout.switch("level-1")
    del second
    layout.switch("awake")
    assert layout.heap("weights").used == 128 * M
    del third
    layout.switch("level-1")
    layout.switch("awake")
    assert layout.heap("weights").used == 64 * M
    assert bool((first == 7).all())


def test_memory_without_tensors_is_room_and_a_failure_names_what_is_left_and_trim() -> None:
    with memtopo.applied(spec("room", limit="2GiB")) as layout:
        for size in (G, 3 * G // 2, G):
            made(layout, "weights", size)
        with memtopo.torch.allocating(layout, "weights") as pool:
            first = torch.empty(G, dtype=torch.uint8, device="cuda")
            del first
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(3 * G // 2, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as foreign, memtopo.torch.allocating(layout, "weights"):
            raise torch.OutOfMemoryError("of something else")
        assert not getattr(foreign.value, "__notes__", None)
        kept = made(layout, "weights", G // 2)
        with pytest.raises(torch.OutOfMemoryError) as found, memtopo.torch.allocating(layout, "weights"):
            torch.empty(2 * G, dtype=torch.uint8, device="cuda")
        (note,) = found.value.__notes__
        assert "of its limit of 2 GiB are left" in note
        del kept, found, pool


def test_a_graph_does_not_write_to_tensors_that_are_made_in_its_heap_later(layout: Any) -> None:
    stream, x = torch.cuda.Stream(), torch.randn(512, 1024, device="cuda")
    pool, graph = memtopo.torch.pool(layout, "cache"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.mem_pool.id, stream=stream):
        y = (x * 2).relu() + 1
    with torch.cuda.stream(stream):
        later = [made(layout, "cache", 2 * M) for _ in range(12)]
    pool.trim()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, (x * 2).relu() + 1)
    assert all(bool((each == 7).all()) for each in later)


def test_one_of_two_threads_that_use_a_heap_for_the_first_time_is_refused(layout: Any) -> None:
    together, left, refused = threading.Barrier(2), threading.Barrier(2), list[str]()

    def work() -> None:
        together.wait()
        try:
            with memtopo.torch.allocating(layout, "weights"):
                left.wait(60)
        except Unsuitable as error:
            refused.append(str(error))
            left.wait(60)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(refused) == 1
    assert "another thread allocates in heap 'weights'" in refused[0]


def test_a_layout_that_was_left_is_refused_and_freed_with_its_statistics() -> None:
    torch.cuda.empty_cache()
    before, gone = torch.cuda.memory_reserved(), []
    for number in range(3):
        with memtopo.applied(spec(f"left{number}")) as layout:
            made(layout, "weights")
        for _ in range(2):
            with pytest.raises(Unsuitable, match="no longer exists"):
                made(layout, "weights")
        gone.append(weakref.ref(layout))
        del layout
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    assert torch.cuda.memory_reserved() == before


def test_a_tensor_that_outlives_its_layout_frees_nothing_of_the_next_one() -> None:
    with memtopo.applied(spec("first")) as layout:
        old = made(layout, "weights")
    with memtopo.applied(spec("next")) as layout:
        new = made(layout, "weights")
        assert new.data_ptr() != old.data_ptr()
        del old
        torch.cuda.empty_cache()
        assert len(layout.heap("weights").allocations) == 1
        assert bool((new == 7).all())
        del new


def test_a_switch_inside_a_capture_is_refused(layout: Any) -> None:
    kept, graph = made(layout, "weights"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = kept * 2
        for change in (lambda: layout.switch("level-1"), layout.heap("weights").sleep):
            with pytest.raises(Unsuitable, match="while a graph is captured"):
                change()
    graph.replay()
    assert bool((doubled == 14).all())


def test_a_heap_is_refused_while_nccl_registers_all_memory(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    with pytest.raises(Unsuitable, match="NCCL_GRAPH_REGISTER=1 registers memory"):
        memtopo.torch.pool(layout, "weights")


PRELUDE = f"""
import sys, torch, memtopo, memtopo.torch
context = memtopo.applied({spec("program")!r})
layout = context.__enter__()
with memtopo.torch.allocating(layout, "weights") as pool:
    kept, other = torch.ones(1 << 20, device="cuda"), torch.ones(8 << 20, device="cuda")
"""
FAILED = """
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        (kept + 1).sum().item()
except Exception:
    del graph
"""
PROGRAMS = {
    "a layout that is not left": ("print('end')", 0),
    "a layout that is not left, without tensors": ("del kept, other; pool.trim(); print('end')", 0),
    "a layout that is not left, with an error": ("print('end'); raise RuntimeError", 1),
    "a layout that is not left, with a status": ("print('end'); sys.exit(7)", 7),
    "a tensor that outlives its layout": ("context.__exit__(None, None, None); print('end')", 0),
    "a failed capture": (FAILED + "print('end')", 0),
    "a failed capture and trim": (
        FAILED + "del kept, other; pool.trim(); print('end' if not layout.heap('weights').used else pool.statistics)",
        0,
    ),
    "trim beside a pool of the program": (
        """
own = torch.cuda.MemPool()
del other
with torch.cuda.use_mem_pool(own):
    mine = torch.ones(1 << 20, device="cuda")
    pool.trim()
torch.cuda.empty_cache()
print("end" if bool(kept.eq(1).all()) else "lost")
""",
        0,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_with_its_own_status(name: str) -> None:
    code, status = PROGRAMS[name]
    found = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip()) == (status, "end"), found.stderr


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [("expandable_segments:True", "end"), ("backend:cudaMallocAsync", "remove 'backend:cudaMallocAsync'")],
)
def test_a_configuration_of_the_allocator_works_or_the_error_says_what_to_remove(
    configuration: str, expected: str
) -> None:
    code = PRELUDE + "layout.switch('level-1'); layout.switch('awake'); print('end' if kept.eq(1).all() else 'lost')"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": configuration}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert expected in found.stdout + found.stderr


RANK = Path(__file__).with_name("torch_rank.py")


@pytest.mark.parametrize("how", ["eager", "graph", "pool", "own", "another"])
@pytest.mark.parametrize("handles", ["fd", "none"])
def test_collectives_are_right_after_a_sleep_that_frees_their_memory(how: str, handles: str) -> None:
    """`own` and `another`: tensors in a pool that the program registers, also one of a graph; it is refused once."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(29700 + os.getpid() % 1000),
            "NCCL_NVLS_ENABLE": "0",
        }
        command = [sys.executable, str(RANK), how, handles]
        ranks.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    try:
        outputs = [each.communicate(timeout=120)[0] for each in ranks]
    finally:
        for each in ranks:
            with suppress(ProcessLookupError):
                each.kill()
    assert all(output.rstrip().endswith("right") for output in outputs), "\n".join(outputs)
