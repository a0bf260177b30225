"""What the system says beside the driver: its release, device files, NUMA nodes with memory, free device memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_RELEASE = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9.]*[0-9])\s")


def kernel_release(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The release of the loaded kernel module, such as `580.159.04`; None where the system does not tell."""
    match = _RELEASE.search(_text(file))
    return match[1] if match else None


def numa_nodes(file: Path = Path("/sys/devices/system/node/has_memory")) -> tuple[int, ...] | None:
    """The NUMA nodes that have memory; None where the system does not tell."""
    nodes: list[int] = []
    for part in filter(None, _text(file).strip().split(",")):
        first, _, last = part.partition("-")
        nodes.extend(range(int(first), int(last or first) + 1))
    return tuple(nodes) or None


def closed_devices(root: Path = Path("/")) -> list[str]:
    """The device files of NVIDIA's driver that this process may not open for reading and writing."""
    files = [Path("/dev") / name for name in _names(root / "dev") if _is_gpu(name)]
    return [str(file) for file in files if not os.access(root / file.relative_to("/"), os.R_OK | os.W_OK)]


def free_memory(uuids: Iterable[str | None]) -> list[int | None]:
    """Free bytes of each GPU, asked of NVML since the driver wants a context for it; None where NVML does not tell."""
    try:
        from cuda.bindings import nvml  # noqa: PLC0415  # bindings before 13.1 have none

        nvml.init_v2()
    except Exception:  # noqa: BLE001  # whatever is wrong with NVML, the total is still known
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
