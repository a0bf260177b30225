"""Information from files of the system: driver release, device files, NUMA nodes, memory of the host."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RELEASE = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9.]*[0-9])\s")

_TOTAL = re.compile(r"MemTotal: *([0-9]{1,12}) kB")


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


def numa_bytes(folder: Path = Path("/sys/devices/system/node"), host: int | None = None) -> dict[int, int]:
    """Bytes of the memory of each NUMA node; nodes whose memory is unknown or none are left out.

    None is known if all of them have less than nine tenths of the host's memory, which is `host` bytes: the nodes of a
    virtual machine do not count memory that was added after its start.
    """
    found = {
        int(name[4:]): _TOTAL.search(_text(folder / name / "meminfo")) for name in _names(folder) if _is_node(name)
    }
    sizes = {node: size for node, match in found.items() if match and (size := int(match[1]) << 10)}
    whole = sum(sizes.values()) * 10 >= (host_memory() or 0 if host is None else host) * 9
    return sizes if whole else {}


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


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _is_node(name: str) -> bool:
    return name.startswith("node") and name[4:].isdecimal()


def _is_gpu(name: str) -> bool:
    return name in ("nvidiactl", "nvidia-uvm") or (name.startswith("nvidia") and name[6:].isdecimal())


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
