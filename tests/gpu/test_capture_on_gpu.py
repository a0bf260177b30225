"""Captures on a real GPU: nothing is missed against the counts of the programs themselves, and they run as before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.driver.values import HANDLE
from memtopo.plans.trace import TracedCall, TraceFile, read_traces
from tests.helpers.command_line import MEMTOPO, environment
from tests.helpers.specs import ROOT

pytestmark = pytest.mark.gpu

MODEL = """
import json, torch
torch.cuda.memory._record_memory_history(context=None, stacks="python")
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
model(torch.randn(256, 1024, device="cuda")).sum().backward()
kept = [torch.zeros(size << 20, dtype=torch.uint8, device="cuda") for size in (1, 3, 12, 40, 100)]
del kept[3]
torch.cuda.empty_cache()
big = torch.zeros(300 << 20, dtype=torch.uint8, device="cuda")
trace, *_ = torch.cuda.memory._snapshot()["device_traces"]
print(json.dumps([[each["action"], each["addr"], each["size"]] for each in trace if "segment" in each["action"]]))
"""
DRIVER = """
import ctypes
from ctypes import byref, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
context = c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
def use():
    assert cuda.cuCtxSetCurrent(context) == 0
"""
MANY = f"""{DRIVER}
from threading import Thread
def work():
    use()
    event = c_void_p()
    for _ in range(12_500):
        assert cuda.cuEventCreate(byref(event), 0) == 0
        assert cuda.cuEventDestroy_v2(event) == 0
threads = [Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
ALLOCATE = f"""{DRIVER}
use()
address = c_uint64()
assert cuda.cuMemAlloc_v2(byref(address), c_size_t(12345)) == 0
assert cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1 << 50)) == 2
assert cuda.cuMemFree_v2(address) == 0
"""


def capture(file: Path, *command: str | Path, stacks: str = "none", **more: str) -> tuple[str, list[TraceFile]]:
    """Output of a program that ends well under a capture, and its traces."""
    given = [*MEMTOPO, "capture", "-o", str(file), "--stacks", stacks, "--", *map(str, command)]
    done = subprocess.run(given, env=environment(**more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, read_traces([file])


def python(file: Path, code: str, **more: str) -> tuple[str, list[TracedCall]]:
    output, (trace,) = capture(file, sys.executable, "-c", code, **more)
    return output, list(trace.calls)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def segments(output: str, action: str) -> list[tuple[int, int]]:
    """Addresses and sizes of the segments of PyTorch's own record."""
    return [(address, size) for what, address, size in json.loads(output) if what == action]


def sizes(calls: Iterable[TracedCall], method: str) -> int:
    return sum(call.arguments["size"] for call in calls if call.method == method and call.error is None)


def test_every_segment_of_pytorch_is_recorded(file: Path) -> None:
    pytest.importorskip("torch")
    output, calls = python(file, MODEL)
    allocated = Counter((call.result, call.arguments["size"]) for call in calls if call.method == "mem_alloc")
    freed = Counter(call.arguments["address"] for call in calls if call.method == "mem_free")
    made, gone = segments(output, "segment_alloc"), segments(output, "segment_free")
    assert len(made) > 8
    assert gone
    assert Counter(made) <= allocated
    assert Counter(address for address, _ in gone) <= freed


def test_every_expandable_segment_of_pytorch_is_recorded(file: Path) -> None:
    pytest.importorskip("torch")
    output, calls = python(file, MODEL, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    mapped, unmapped = segments(output, "segment_map"), segments(output, "segment_unmap")
    assert sum(size for _, size in mapped) == sizes(calls, "mem_map") == sizes(calls, "mem_create") > 0
    assert sum(size for _, size in unmapped) == sizes(calls, "mem_unmap") > 0


def test_a_hundred_thousand_calls_of_four_threads_are_recorded(file: Path) -> None:
    _, calls = python(file, MANY)
    found = Counter(call.method for call in calls)
    assert (found["event_create"], found["event_destroy"]) == (50_000, 50_000)
    assert sorted(call.number for call in calls) == [*range(1, len(calls) + 1)]
    made = Counter(call.result for call in calls if call.method == "event_create")
    assert made == Counter(call.arguments["event"] for call in calls if call.method == "event_destroy")
    assert len({call.thread for call in calls}) == 5


def test_results_errors_and_gpus_are_those_of_the_calls(file: Path) -> None:
    _, (trace,) = capture(file, sys.executable, "-c", ALLOCATE)
    retained, allocated, refused, freed = trace.calls
    assert retained.arguments == {"device": 0}
    assert (allocated.arguments, allocated.device) == ({"size": 12345}, 0)
    assert (refused.arguments, refused.error) == ({"size": 1 << 50}, "CUDA_ERROR_OUT_OF_MEMORY")
    assert (freed.arguments, freed.result) == ({"address": allocated.result}, None)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert all(gpu in listed for gpu in trace.head.gpus)
    assert len(trace.head.gpus) == len(listed.splitlines())


def test_children_are_recorded_into_the_same_file(file: Path) -> None:
    code = f"import subprocess, sys\n[subprocess.run([sys.executable, '-c', {ALLOCATE!r}], check=True) for _ in 'ab']\n"
    _, traces = capture(file, sys.executable, "-c", code + ALLOCATE)
    assert [[call.method for call in trace.calls] for trace in traces] == [
        ["device_primary_ctx_retain", "mem_alloc", "mem_alloc", "mem_free"]
    ] * 3


def test_stacks_of_python_name_the_line_in_pytorch_and_its_threads(file: Path) -> None:
    pytest.importorskip("torch")
    code = """
import threading, torch
def work():
    for _ in range(50):
        x = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda", requires_grad=False)
        y = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        (y @ y).sum().backward()
        del x
        torch.cuda.empty_cache()
threads = [threading.Thread(target=work) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    _, calls = python(file, code, stacks="python")
    allocations = [call for call in calls if call.method == "mem_alloc"]
    assert len(allocations) > 100
    assert sum("work" in " ".join(call.stack) for call in allocations) > 100


def test_stacks_of_c_lead_to_the_allocator(file: Path) -> None:
    pytest.importorskip("torch")
    _, calls = python(file, "import torch; torch.zeros(1 << 20, device='cuda')", stacks="c")
    (stack, *_) = (call.stack for call in calls if call.method == "mem_alloc")
    assert any(frame.startswith("libc10_cuda.so:") for frame in stack)


@pytest.mark.parametrize("spec", ["single-gpu", "managed", "legacy-ipc", "host-staging"])
def test_a_capture_of_a_run_has_the_calls_of_its_own_trace(spec: str, file: Path, tmp_path: Path) -> None:
    """Those that both record, in order, with the numbers of the driver; the run is built, checked and taken down."""
    own = tmp_path / "own"
    command = [*MEMTOPO, "apply", str(ROOT / f"specs/{spec}.yaml"), "--machine", "local", "--trace", str(own)]
    _, traces = capture(file, *command)
    recorded = {call.method for trace in traces for call in trace.calls}
    expected = {trace.head.pid: _plain(trace.calls, recorded) for trace in read_traces([own])}
    assert {trace.head.pid: _plain(trace.calls, recorded) for trace in traces} == expected


def _plain(calls: Iterable[TracedCall], methods: set[str]) -> list[tuple[Any, ...]]:
    """Methods, errors, arguments without flags, and results, with digests as a trace hides handles."""
    return [
        (
            call.method,
            call.error,
            {name: _number(value) for name, value in call.arguments.items() if name not in _asked(call)},
            _number(call.result),
        )
        for call in calls
        if call.method in methods
    ]


def _asked(call: TracedCall) -> tuple[str, ...]:
    """Arguments that are not compared: flags as numbers or names, and what a capture asks the driver for."""
    imported = ("location",) if call.method == "mem_import_from_shareable_handle" else ()
    return ("flags", "kind", "advice", *imported)


def _number(value: Any) -> Any:
    return HANDLE if isinstance(value, str) and value.startswith("handle:") else value


def test_exports_and_imports_have_the_same_digest(file: Path) -> None:
    spec = str(ROOT / "specs/legacy-ipc.yaml")
    _, traces = capture(file, *MEMTOPO, "apply", spec, "--machine", "local")
    calls = [call for trace in traces for call in trace.calls]
    exported = {call.result for call in calls if call.method.startswith("ipc_get")}
    imported = {call.arguments["handle"] for call in calls if call.method.startswith("ipc_open")}
    assert len(imported) > 1
    assert imported <= exported


def test_a_part_of_this_process_is_captured() -> None:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    with memtopo.capturing(stacks="python") as record:
        memtopo.mark("first")
        kept = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
        memtopo.mark("second")
    del kept
    torch.cuda.empty_cache()
    first, *between, second = record.calls
    assert (first.arguments, second.arguments) == ({"label": "first"}, {"label": "second"})
    assert 512 << 20 in [call.arguments["size"] for call in between if call.method == "mem_alloc"]
    assert "test_a_part_of_this_process_is_captured" in between[-1].stack[0]
