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


class Links:
    """NVML of a GPU with links to GPUs by their buses, to switches (None), and to nothing."""

    NVLINK_MAX_LINKS = 6

    def __init__(self, *ends: tuple[int, int | None]) -> None:
        self._ends = ends

    def device_get_nvlink_state(self, gpu: object, link: int) -> int:
        del gpu
        return self._ends[link][0]

    def device_get_nvlink_remote_device_type(self, gpu: object, link: int) -> int:
        del gpu
        return 2 if self._ends[link][1] is None else 0

    def device_get_nvlink_remote_pci_info_v2(self, gpu: object, link: int) -> SimpleNamespace:
        del gpu
        return SimpleNamespace(domain=0, bus=self._ends[link][1], device_=0)


def test_active_links_count_for_the_gpu_at_their_end_and_those_to_switches_for_all() -> None:
    """A link to a GPU that is not here counts for none; the last of six links does not exist."""
    buses = [(0, 1, 0), (0, 2, 0), None, (0, 3, 0)]
    assert nvml._nvlinks(Links((1, 9), (1, 2), (0, 2), (1, 3), (1, 2)), object(), buses) == [0, 2, 0, 1]
    assert nvml._nvlinks(Links((1, None), (0, None), (1, None), (1, 3)), object(), buses) == [2, 2, 2, 3]


class Listing:
    """NVML of GPUs, of which the first cannot be opened, and the second does not list its processes."""

    class NotSupportedError(Exception):
        """A list that a GPU does not have."""

    def device_get_count_v2(self) -> int:
        return 3

    def device_get_handle_by_index_v2(self, index: int) -> int:
        if not index:
            raise PermissionError("Insufficient Permissions.")
        return index

    def device_get_name(self, gpu: int) -> str:
        return f"GPU {gpu}"

    device_get_uuid = device_get_name

    def device_get_memory_info_v2(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(total=10 * gpu, used=3, reserved=2, free=1)

    def device_get_compute_running_processes_v3(self, gpu: int) -> list[object]:
        if gpu == 1:
            raise OSError("Unknown Error")
        return [record(7, 4096)]

    def device_get_mps_compute_running_processes_v3(self, gpu: int) -> list[object]:
        raise self.NotSupportedError(gpu)

    def device_get_graphics_running_processes_v3(self, gpu: int) -> list[object]:
        return [record(8, 512)] if gpu == 1 else []


def test_what_nvml_does_not_tell_of_a_gpu_is_said_and_hides_nothing_else() -> None:
    found = nvml._usage(Listing())
    assert [(each.index, each.total, each.used, each.reserved, each.free) for each in found.gpus] == [
        (1, 10, 3, 2, 1), (2, 20, 3, 2, 1),
    ]  # fmt: skip
    listed = [(each.gpu, each.pid, each.work) for each in found.processes]
    assert listed == [(1, 8, ("graphics",)), (2, 7, ("compute",))]
    assert found.unknown == (
        "memory of GPU 0 of NVML: Insufficient Permissions",
        "compute processes on GPU 1 of NVML: Unknown Error",
    )
