"""NVML's records without a GPU, and its absence."""

from __future__ import annotations

import ctypes.util
from types import SimpleNamespace

import pytest

from memtopo.driver.types import ProcessMemory
from memtopo.drivers.cuda import nvml
from memtopo.drivers.cuda.nvml import gpu_usage

bindings = pytest.importorskip("cuda.bindings.nvml")


def record(pid: int, used: int, instance: int = 0xFFFFFFFF) -> object:
    """A process as NVML describes it."""
    info = bindings.ProcessInfo(1)
    info.pid, info.used_gpu_memory, info.gpu_instance_id = [pid], [used], [instance]
    return info[0]


@pytest.mark.parametrize(
    ("used", "instance", "expected"),
    [
        (64 << 20, 0xFFFFFFFF, ProcessMemory(1, 7, ("compute",), 64 << 20)),
        (0, 0xFFFFFFFF, ProcessMemory(1, 7, ("compute",), 0)),
        ((1 << 64) - 1, 0xFFFFFFFF, ProcessMemory(1, 7, ("compute",), None)),
        (4096, 3, ProcessMemory(1, 7, ("compute",), 4096, 3)),
    ],
)
def test_a_number_that_nvml_does_not_have_is_none(used: int, instance: int, expected: ProcessMemory) -> None:
    assert nvml._process(1, "compute", record(7, used, instance)) == expected


def test_a_process_of_two_lists_has_its_bytes_once() -> None:
    compute, graphics = ProcessMemory(0, 7, ("compute",), 4096), ProcessMemory(0, 7, ("graphics",), 4096)
    assert nvml._merged(compute, graphics) == ProcessMemory(0, 7, ("compute", "graphics"), 4096)
    assert nvml._merged(ProcessMemory(0, 7, ("compute",), None), graphics).bytes == 4096


def test_a_process_on_two_instances_has_the_bytes_of_each() -> None:
    lists = dict.fromkeys((query for _, query in nvml._LISTS), lambda gpu: [record(7, 4096, gpu), record(7, 8192, 3)])
    processes, _ = nvml._processes(SimpleNamespace(**lists), 0, 2)
    assert [(each.pid, each.work, each.bytes, each.instance) for each in processes] == [
        (7, ("compute", "graphics"), 4096, 2),
        (7, ("compute", "graphics"), 8192, 3),
    ]


@pytest.mark.skipif(bool(ctypes.util.find_library("nvidia-ml")), reason="NVML is installed here")
def test_a_machine_without_nvml_is_said_to_have_none() -> None:
    found = gpu_usage()
    assert (found.gpus, found.processes) == ((), ())
    assert "libnvidia-ml, which is a part of NVIDIA's driver, is not installed" in found.unknown[0]
