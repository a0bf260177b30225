"""What the system says beside the driver: the kernel module's release, and the NUMA nodes that have memory."""

from __future__ import annotations

import re
from pathlib import Path

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


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
