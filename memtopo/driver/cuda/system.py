"""Information from the system and NVML: driver release, device files, NUMA nodes, free memory, links between GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_RELEASE = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9.]*[0-9])\s")


def kernel_release(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Release of the loaded kernel module, such as `580.159.04`; None if it is unknown."""
    match = _RELEASE.search(_text(file))
    return match[1] if match else None


def numa_nodes(file: Path = Path("/sys/devices/system/node/has_memory")) -> tuple[int, ...] | None:
    """NUMA nodes with memory; None if they are unknown."""
    nodes: list[int] = []
    for part in filter(None, _text(file).strip().split(",")):
        first, _, last = part.partition("-")
        nodes.extend(range(int(first), int(last or first) + 1))
    return tuple(nodes) or None


def host_memory() -> int | None:
    """Bytes of the host's memory; None if they are unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def inaccessible_devices(root: Path = Path("/")) -> list[str]:
    """Device files of NVIDIA's driver that this process may not open for reading and writing."""
    files = [Path("/dev") / name for name in _names(root / "dev") if _is_gpu(name)]
    return [str(file) for file in files if not os.access(root / file.relative_to("/"), os.R_OK | os.W_OK)]


def free_memory(uuids: Iterable[str | None]) -> list[int | None]:
    """Free bytes of each GPU, from NVML since the driver needs a context for it; None if NVML does not report it."""
    try:
        from cuda.bindings import nvml  # noqa: PLC0415  # bindings before 13.1 have none

        nvml.init_v2()
    except Exception:  # noqa: BLE001  # without NVML, the total is still known
        return [None for _ in uuids]
    try:
        return [_free(nvml, uuid) for uuid in uuids]
    finally:
        nvml.shutdown()


def _free(nvml: Any, uuid: str | None) -> int | None:
    try:
        return int(nvml.device_get_memory_info_v2(nvml.device_get_handle_by_uuid(uuid)).free)
    except Exception:  # noqa: BLE001  # MIG instances, containers: likewise
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _is_gpu(name: str) -> bool:
    return name in ("nvidiactl", "nvidia-uvm") or (name.startswith("nvidia") and name[6:].isdecimal())


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


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
        gpus = [_handle(nvml, uuid) for uuid in uuids]
        buses = [_bus(nvml, gpu) for gpu in gpus]
        for a, gpu in enumerate(gpus):
            nvlinks = _nvlinks(nvml, gpu, buses)
            for b, other in enumerate(gpus):
                if a != b and gpu is not None and other is not None:
                    found[a][b] = ("NV", nvlinks[b]) if nvlinks[b] else (_pcie(nvml, gpu, other), None)
    finally:
        nvml.shutdown()
    return found


def _handle(nvml: Any, uuid: str | None) -> Any:
    with suppress(Exception):  # MIG instances, containers
        return nvml.device_get_handle_by_uuid(uuid)
    return None


def _bus(nvml: Any, gpu: Any) -> tuple[int, ...] | None:
    with suppress(Exception):
        return _address(nvml.device_get_pci_info_v3(gpu))
    return None


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


def _pcie(nvml: Any, gpu: Any, other: Any) -> str | None:
    with suppress(Exception):
        return _PCIE.get(int(nvml.device_get_topology_common_ancestor(gpu, other)))
    return None
