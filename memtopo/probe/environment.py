"""Properties of the system and of this process that decide about trials, read from files and the environment."""

from __future__ import annotations

import ctypes.util
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from memtopo.machine import Surroundings

_UNLIMITED = 1 << 60
"""Limit from which on a control group of version 1 has none."""

_CGROUPS = ("docker", "containerd", "kubepods", "libpod", "lxc")


def read(root: Path = Path("/")) -> Surroundings:
    """Read the environment of this process; `root` is that of the file system."""
    return Surroundings(
        container=_in_container(root),
        wsl="microsoft" in _text(root / "proc/version").lower(),
        imex_channels=len(_names(root / "dev/nvidia-caps-imex-channels")),
        ptrace_scope=_number(_text(root / "proc/sys/kernel/yama/ptrace_scope")),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        vulkan=ctypes.util.find_library("vulkan") is not None,
        bindings=_bindings(),
        locked_bytes=None if (locked := resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]) < 0 else locked,
        group_bytes=_group_bytes(root),
    )


def ignored_devices(visible: str | None, count: int) -> str | None:
    """Entries of `CUDA_VISIBLE_DEVICES` that the driver ignored, if it sees fewer GPUs than are named there."""
    entries = [entry.strip() for entry in (visible or "").split(",")]
    return ",".join(entries[count:]) if visible and len(entries) > count else None


def _in_container(root: Path) -> bool:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists() or "container" in os.environ:
        return True
    return any(name in _text(root / "proc/1/cgroup") for name in _CGROUPS)


def _group_bytes(root: Path) -> int | None:
    """Smallest memory limit of the control groups around this process; None if there is none."""
    limits = (_number(_text(file)) for file in _limits(root))
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)


def _limits(root: Path) -> Iterator[Path]:
    """Files with the memory limits of the control groups of this process, of version 1 or 2."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path(path.strip("/"))
        for each in (group, *group.parents):
            if not controllers:
                yield root / "sys/fs/cgroup" / each / "memory.max"
            elif "memory" in controllers.split(","):
                yield root / "sys/fs/cgroup/memory" / each / "memory.limit_in_bytes"


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _bindings() -> str | None:
    with suppress(PackageNotFoundError):
        return version("cuda-bindings")
    return None
