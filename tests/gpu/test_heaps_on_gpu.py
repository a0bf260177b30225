"""Heaps on a real GPU: PyTorch in them, sleep with captured graphs, threads, and the drop-ins of other libraries."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.api.errors import OutOfMemory, Unsuitable
from tests.contract.memory import current
from tests.contract.other_process import Other
from tests.contract.shared_resources import closing, imported, usable
from tests.helpers.specs import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::memtopo.torch.OutsideHeaps")]
torch: Any = pytest.importorskip("torch")

import memtopo.torch  # noqa: E402 after PyTorch was found

GIB = 1 << 30
SPEC = ROOT / "specs/engine-heaps.yaml"
FILL = """
import torch
free = torch.cuda.mem_get_info()[0]
kept = torch.full((free - (1 << 30),), 0x5A, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
"""


@pytest.fixture(autouse=True)
def _started() -> None:
    torch.zeros(1, device="cuda")


def model(layers: int, width: int = 4096) -> Any:
    """A stack of residual layers, each of 8 × width² bytes."""
    return [
        (torch.randn(width, width, device="cuda") * 0.01, torch.randn(width, width, device="cuda") * 0.01)
        for _ in range(layers)
    ]


def run(layers: Any, x: Any) -> Any:
    for up, down in layers:
        x = x + torch.nn.functional.gelu(x @ up) @ down
    return x


def captured(layers: Any, x: Any) -> tuple[Any, Any]:
    """A graph of a run, and its output."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(layers, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(layers, x)
    return graph, out


def test_a_graph_over_weights_replays_bit_equal_after_another_process_had_the_memory() -> None:
    """4 GiB of weights sleep in host memory, a cache is dropped, and another process writes all free memory."""
    with memtopo.applied(SPEC) as layout:
        with memtopo.torch.allocating(layout, "weights"):
            layers, x = model(32), torch.randn(64, 4096, device="cuda")
        with memtopo.torch.allocating(layout, "kv-cache"):
            cache = torch.zeros(8 * GIB, dtype=torch.uint8, device="cuda")
        assert layout.heap("weights").used >= 4 * GIB
        graph, out = captured(layers, x)
        graph.replay()
        expected = out.clone()
        for _ in range(3):
            assert not layout.switch("level-1").different
            subprocess.run([sys.executable, "-c", FILL], check=True)
            assert not layout.switch("awake").different
            out.zero_()
            graph.replay()
            assert torch.equal(out, expected)
        del graph, out, layers, x, cache, expected
    assert layout.report
    assert (layout.report.outcome, layout.report.leaks) == ("ok", ())


def test_a_thousand_sleeps_leave_no_memory() -> None:
    with memtopo.applied(SPEC) as layout:
        with memtopo.torch.allocating(layout, "weights"):
            kept = [torch.full((32 << 20,), i, dtype=torch.uint8, device="cuda") for i in range(8)]
        heap = layout.heap("weights")
        heap.sleep()
        heap.wake()
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        for _ in range(1000):
            heap.sleep()
            heap.wake()
        assert torch.cuda.mem_get_info()[0] == before
        assert [int(each[-1]) for each in kept] == [*range(8)]
        del kept


@pytest.mark.filterwarnings("ignore::memtopo.MemoryHeld")  # the threads also allocate outside of heaps
def test_threads_allocate_in_heaps_of_their_own_while_another_one_switches_states(tmp_path: Path) -> None:
    """A pattern for each allocation stays in heaps that no state names, and allocations in the others fail or hold."""
    heaps = {f"t{i}": {"location": "gpu0", "size": "8GiB"} for i in range(8)}
    sleeping = {"cache": {"location": "gpu0", "size": "8GiB"}}
    spec = {
        "memtopo": 1,
        "name": "threads",
        "heaps": heaps | sleeping,
        "access": {name: {"gpu0": "rw"} for name in heaps | sleeping},
        "states": {"asleep": {"offload": {"cache": "pinned"}}},
    }
    with memtopo.applied(spec) as layout:
        with memtopo.torch.allocating(layout, "cache"):
            cache = torch.full((64 << 20,), 9, dtype=torch.uint8, device="cuda")
        stop, wrong = threading.Event(), list[object]()

        def work(name: str, value: int) -> None:
            try:
                while not stop.is_set():
                    with memtopo.torch.allocating(layout, name):
                        made = [torch.full((n << 20,), value, dtype=torch.uint8, device="cuda") for n in (3, 40, 7)]
                    assert all(bool((each == value).all()) for each in made)
                    del made
            except BaseException as error:  # noqa: BLE001 reported by the test
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(name, i + 1)) for i, name in enumerate(heaps)]
        for each in threads:
            each.start()
        for _ in range(20):
            layout.switch("asleep")
            layout.switch("awake")
        stop.set()
        for each in threads:
            each.join(60)
        assert not wrong
        assert not any(each.is_alive() for each in threads), "a thread hangs"
        assert bool((cache == 9).all())
        del cache


def test_an_allocation_without_room_is_pytorchs_error_with_the_reason_beside_it() -> None:
    spec = {
        "memtopo": 1,
        "name": "small",
        "heaps": {"h": {"location": "gpu0", "size": "1GiB", "limit": "256MiB"}},
        "access": {"h": {"gpu0": "rw"}},
    }
    with memtopo.applied(spec) as layout:
        with pytest.raises(torch.OutOfMemoryError) as found, memtopo.torch.allocating(layout, "h"):
            torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        assert "256 MiB of its limit of 256 MiB are left" in "".join(found.value.__notes__)
        with memtopo.torch.allocating(layout, "h") as pool:
            kept = torch.full((100 << 20,), 3, dtype=torch.uint8, device="cuda")
            torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        assert pool.statistics.segments == 2
        pool.trim()
        assert len(layout.heap("h").allocations) == 1
        assert bool((kept == 3).all())
        del kept, pool


def test_the_saver_keeps_and_drops_by_tag_and_reads_backups() -> None:
    from memtopo.torch.saver import torch_memory_saver as saver

    with saver.region(tag="kept", enable_cpu_backup=True):
        kept = torch.randn(1 << 20, device="cuda")
    with saver.region(tag="pageable", enable_cpu_backup=True, cpu_backup_backend="mmap"):
        pageable = torch.randn(1 << 20, device="cuda")
    with saver.region(tag="dropped"):
        dropped = torch.full((1 << 20,), 7, device="cuda")
        with saver.disable():
            outside = torch.full((100,), 5.0, device="cuda")
    expected = kept.cpu(), pageable.cpu()
    saver.pause("kept")
    saver.pause()
    assert [torch.equal(saver.get_cpu_backup(each), own) for each, own in zip((kept, pageable), expected, strict=True)]
    assert bool((outside == 5).all())
    saver.resume("kept")
    assert torch.equal(kept.cpu(), expected[0])
    assert saver.get_cpu_backup(kept) is None
    saver.resume()
    assert torch.equal(pageable.cpu(), expected[1])
    dropped.fill_(1)
    assert bool((dropped == 1).all())
    saver.retain_cpu_backup = True
    saver.pause("kept")
    saver.resume("kept")
    assert torch.equal(saver.get_cpu_backup(kept, zero_copy=True), expected[0])
    saver.retain_cpu_backup = False


@pytest.fixture
def heap_layout() -> Iterator[Any]:
    spec = {
        "memtopo": 1,
        "name": "others",
        "heaps": {"h": {"location": "gpu0", "size": "1GiB", "handles": "fd"}},
        "access": {"h": {"gpu0": "rw"}},
    }
    with memtopo.applied(spec) as layout:
        yield layout


def test_requests_that_a_heap_cannot_fulfil_change_nothing(heap_layout: Any) -> None:
    heap = heap_layout.heap("h")
    address = heap.allocate(64 << 20)
    with pytest.raises(OutOfMemory, match="the largest hole among its 1 GiB of addresses has 960 MiB"):
        heap.allocate(1 << 30)
    for wrong in (address + 1, 0):
        with pytest.raises(Unsuitable, match="nothing is allocated"):
            heap.free(wrong)
    heap.sleep()
    for refused in (lambda: heap.free(address), lambda: heap.allocate(1), heap.sleep):
        with pytest.raises(Unsuitable, match=r"asleep|currently has no memory"):
            refused()
    heap.wake()
    heap.free(address)
    with pytest.raises(Unsuitable, match="nothing is allocated"):
        heap.free(address)


def test_another_process_maps_a_tensors_memory(heap_layout: Any) -> None:
    """Its bytes stay for that process while the heap is asleep."""
    heap, other = heap_layout.heap("h"), Other(None)
    try:
        other.init()
        with memtopo.torch.allocating(heap_layout, "h"), current(other):
            tensor = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
            torch.cuda.synchronize()
            (allocation,) = heap.allocations
            with (
                closing(heap.export(allocation.address)) as fd,
                imported(other, fd) as handle,
                usable(other, allocation.size, handle) as theirs,
            ):
                at = theirs + tensor.data_ptr() - allocation.address
                assert other.memcpy_dtoh(at + 4, 8) == b"\1\0\0\0\2\0\0\0"
                with pytest.warns(memtopo.MemoryHeld, match="did not become free: a library that has registered it"):
                    heap.sleep()
                assert other.memcpy_dtoh(at + 4, 8) == b"\1\0\0\0\2\0\0\0"
                heap.wake()
            assert int(tensor[2]) == 2
            del tensor
    finally:
        other.end()


def test_others_see_what_an_engine_without_a_spec_has_allocated() -> None:
    command = [sys.executable, "-c", ENGINE]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines() == ["1 64MiB 0B"]


def test_a_heap_that_an_engine_could_not_have_is_made_when_it_is_needed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from memtopo.torch.engine import Engine

    engine = Engine()
    monkeypatch.setenv("MEMTOPO_ENGINE", "no name of a layout")
    with pytest.raises(memtopo.InvalidSpec):
        engine.pool("test", "weights", 0)
    assert engine.heaps("test") == []
    monkeypatch.setenv("MEMTOPO_ENGINE", "another-engine")  # the saver's has the name of this process
    try:
        engine.pool("test", "weights", 0)
        assert [key.tag for key, _ in engine.heaps("test")] == ["weights"]
    finally:
        engine.close()


ENGINE = """
import os, subprocess, sys
sys.modules["torch_memory_saver"] = __import__("memtopo.torch.saver").torch.saver
from torch_memory_saver import torch_memory_saver
import torch
with torch_memory_saver.region(tag="weights"):
    kept = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
torch_memory_saver.pause("weights")
command = [sys.executable, "-m", "memtopo", "show", f"torch-{os.getpid()}"]
shown = subprocess.run(command, capture_output=True, text=True)
(line,) = [line.split() for line in shown.stdout.splitlines() if line.strip().startswith("engine.weights")]
print(line[1], "".join(line[2:4]), "".join(line[4:6]))
"""
