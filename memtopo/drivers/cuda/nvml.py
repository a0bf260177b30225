"""Information from NVML: free memory and cliques of GPUs, links between them, and the processes that use their memory.

`cuda.bindings` has NVML from version 13.1 on; without it, or without the driver's library, nothing of this is known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_ubyte, c_uint, c_ulonglong
from typing import Any
from uuid import UUID

from msgspec import Struct

from memtopo.common.units import shorten
from memtopo.driver.types import GpuMemory, GpuUsage, ProcessMemory, Work

_NO_VALUE = 1 << 63
"""Numbers of bytes from here on are NVML's "not available"."""

_NO_INSTANCE = 0xFFFFFFFF
_SIZES = ("total", "used", "reserved", "free")
_LISTS: tuple[tuple[Work, str], ...] = (
    ("compute", "device_get_compute_running_processes_v3"),
    ("compute", "device_get_mps_compute_running_processes_v3"),
    ("graphics", "device_get_graphics_running_processes_v3"),
)


def gpu_usage() -> GpuUsage:
    """Memory of each GPU and of the processes on it, with the reason for what NVML does not report.

    No context is created, and no root access is needed. In a container NVML may omit the processes outside of it.
    """
    try:
        from cuda.bindings import nvml  # noqa: PLC0415  # bindings before 13.1 have none

        nvml.init_v2()
    except Exception as error:  # noqa: BLE001  # no bindings, no library, no driver
        return GpuUsage(unknown=(f"bytes by GPU and process: NVML cannot be used ({_missing(error)})",))
    try:
        return _usage(nvml)
    except Exception as error:  # noqa: BLE001
        return GpuUsage(unknown=(f"bytes by GPU and process: NVML lists no GPUs ({_message(error)})",))
    finally:
        nvml.shutdown()


def _usage(nvml: Any) -> GpuUsage:
    gpus: list[GpuMemory] = []
    processes: list[ProcessMemory] = []
    unknown: list[str] = []
    for index in range(int(nvml.device_get_count_v2())):
        try:
            gpu = nvml.device_get_handle_by_index_v2(index)
        except Exception as error:  # noqa: BLE001  # a GPU that this process may not open, as in a container
            unknown.append(f"memory of GPU {index} of NVML: {_message(error)}")
            continue
        name, uuid = _or_none(nvml.device_get_name, gpu), _or_none(nvml.device_get_uuid, gpu)
        memory = _or_none(nvml.device_get_memory_info_v2, gpu)
        sizes = [None if memory is None else int(getattr(memory, each)) for each in _SIZES]
        gpus.append(GpuMemory(index, name, uuid, *sizes))
        found, reasons = _processes(nvml, index, gpu)
        processes += found
        unknown += reasons
    return GpuUsage(tuple(gpus), tuple(processes), tuple(unknown))


def _processes(nvml: Any, index: int, gpu: Any) -> tuple[list[ProcessMemory], list[str]]:
    """Processes on a GPU, each once: a process of several lists has the same bytes in all of them."""
    found: dict[tuple[int, int | None], ProcessMemory] = {}
    reasons: list[str] = []
    for work, query in _LISTS:
        try:
            listed = [_process(index, work, each) for each in getattr(nvml, query)(gpu)]
        except Exception as error:  # noqa: BLE001
            if not isinstance(error, nvml.NotSupportedError):
                reasons.append(f"{work} processes on GPU {index} of NVML: {_message(error)}")
            continue
        for each in listed:
            before = found.get((each.pid, each.instance))
            found[each.pid, each.instance] = _merged(before, each) if before else each
    return list(found.values()), list(dict.fromkeys(reasons))


def _process(index: int, work: Work, info: Any) -> ProcessMemory:
    size, instance = int(info.used_gpu_memory), int(info.gpu_instance_id)
    known = None if not 0 <= size < _NO_VALUE else size
    return ProcessMemory(index, int(info.pid), (work,), known, None if instance == _NO_INSTANCE else instance)


def _merged(before: ProcessMemory, each: ProcessMemory) -> ProcessMemory:
    work = tuple(dict.fromkeys([*before.work, *each.work]))
    size = each.bytes if before.bytes is None else before.bytes
    return ProcessMemory(before.gpu, before.pid, work, size, before.instance)


def _or_none(query: Callable[..., Any], *arguments: object) -> Any:
    with suppress(Exception):
        return query(*arguments)
    return None


def _missing(error: Exception) -> str:
    """Reason why NVML cannot be used."""
    if isinstance(error, ImportError):
        return "the Python package cuda-bindings has it from version 13.1 on"
    if type(error).__name__ == "DynamicLibNotFoundError":
        return "libnvidia-ml, which is a part of NVIDIA's driver, is not installed"
    return _message(error)


def _message(error: Exception) -> str:
    """First line of an error, short enough for a line of output."""
    return shorten((str(error).splitlines() or [type(error).__name__])[0].rstrip("."), 160)


class _Memory(ctypes.Structure):
    """`nvmlMemory_v2_t`."""

    _fields_ = (("version", c_uint), *((name, c_ulonglong) for name in ("total", "reserved", "free", "used")))

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(_Memory) | 2 << 24)


class GpuReading(Struct, frozen=True):
    """Free bytes of a GPU, and the UUID of its cluster with the number of its clique; None where there is no answer."""

    free: int | None = None
    clique: tuple[str, int] | None = None


def readings(uuids: Sequence[str | None]) -> list[GpuReading]:
    """Free memory and clique of each GPU, from NVML since the driver needs a context for the one and lacks the other.

    Every apply needs them, so these calls are made by ctypes: importing the bindings, and NumPy with them, takes 0.3 s.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        usable = nvml.nvmlInit_v2() == 0
    except (OSError, AttributeError):  # without NVML, the total is still known
        usable = False
    if not usable:
        return [GpuReading() for _ in uuids]
    try:
        return [_reading(nvml, uuid) for uuid in uuids]
    finally:
        nvml.nvmlShutdown()


def _reading(nvml: ctypes.CDLL, uuid: str | None) -> GpuReading:
    """Reading of one GPU; nothing of MIG instances, and of a GPU that a container does not show."""
    gpu, memory = ctypes.c_void_p(), _Memory()
    if uuid is None or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(gpu)):
        return GpuReading()
    free = None if nvml.nvmlDeviceGetMemoryInfo_v2(gpu, ctypes.byref(memory)) else int(memory.free)
    info = FabricInfo()
    query = getattr(nvml, "nvmlDeviceGetGpuFabricInfoV", None)  # older drivers have none
    is_known = query is not None and not query(gpu, ctypes.byref(info))
    return GpuReading(free, info.member if is_known else None)


class FabricInfo(ctypes.Structure):
    """`nvmlGpuFabricInfo_v2_t`."""

    _fields_ = (
        ("version", c_uint),
        ("cluster", c_ubyte * 16),
        ("status", c_uint),
        ("clique", c_uint),
        ("state", c_ubyte),
        ("health", c_uint),
    )

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(FabricInfo) | 2 << 24)

    @property
    def member(self) -> tuple[str, int] | None:
        """UUID of the cluster and number of the clique; None for a GPU that is not registered, or of no cluster.

        A GPU of no cluster has a UUID of zeros (fact 88).
        """
        if self.status or self.state != _REGISTERED or not any(self.cluster):
            return None
        return str(UUID(bytes=bytes(self.cluster))), int(self.clique)


_REGISTERED = 3
"""State of a GPU that is registered with the fabric manager (NVML_GPU_FABRIC_STATE_COMPLETED)."""


_PCIE = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of `nvidia-smi topo` by NVML's levels: one switch, several, a host bridge, a NUMA node, the system."""

_ACTIVE, _GPU, _SWITCH = 1, 0, 2


def links(uuids: Sequence[str | None]) -> list[list[tuple[str | None, int | None]]]:
    """Kind of link and number of NVLinks for each pair of GPUs; None if NVML does not report it."""
    count = len(uuids)
    found: list[list[tuple[str | None, int | None]]] = [[(None, None)] * count for _ in range(count)]
    try:
        from cuda.bindings import nvml  # noqa: PLC0415  # bindings before 13.1 have none

        nvml.init_v2()
    except Exception:  # noqa: BLE001  # without NVML, the peers are still known
        return found
    try:
        # None for MIG instances, and GPUs that a container does not show.
        gpus = [_or_none(nvml.device_get_handle_by_uuid, uuid) for uuid in uuids]
        infos = [_or_none(nvml.device_get_pci_info_v3, gpu) for gpu in gpus]
        buses = [None if info is None else _address(info) for info in infos]
        for a, gpu in enumerate(gpus):
            nvlinks = _nvlinks(nvml, gpu, buses)
            for b, other in enumerate(gpus):
                if a != b and gpu is not None and other is not None:
                    level = _or_none(nvml.device_get_topology_common_ancestor, gpu, other)
                    found[a][b] = ("NV", nvlinks[b]) if nvlinks[b] else (_PCIE.get(int(level or 0)), None)
    finally:
        nvml.shutdown()
    return found


def _address(info: Any) -> tuple[int, ...]:
    return int(info.domain), int(info.bus), int(info.device_)


def _nvlinks(nvml: Any, gpu: Any, buses: Sequence[tuple[int, ...] | None]) -> list[int]:
    """Number of active NVLinks from a GPU to each other GPU; through a switch, all links count for all."""
    counts, switched = [0] * len(buses), 0
    for link in range(int(nvml.NVLINK_MAX_LINKS)):
        with suppress(Exception):  # a link that the GPU does not have
            if nvml.device_get_nvlink_state(gpu, link) != _ACTIVE:
                continue
            kind = int(nvml.device_get_nvlink_remote_device_type(gpu, link))
            if kind == _SWITCH:
                switched += 1
            elif kind == _GPU:
                remote = _address(nvml.device_get_nvlink_remote_pci_info_v2(gpu, link))
                counts[buses.index(remote)] += 1
    return [count + switched for count in counts]
