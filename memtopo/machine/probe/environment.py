"""Properties of the system and of this process that decide about trials, read from files and the environment."""

from __future__ import annotations

import ctypes.util
import os
import resource
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from memtopo.machine import Surroundings

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
    )


def ignored_devices(visible: str | None, count: int) -> str | None:
    """Entries of `CUDA_VISIBLE_DEVICES` that the driver ignored, if it sees fewer GPUs than are named there."""
    entries = [entry.strip() for entry in (visible or "").split(",")]
    return ",".join(entries[count:]) if visible and len(entries) > count else None


def _in_container(root: Path) -> bool:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists() or "container" in os.environ:
        return True
    return any(name in _text(root / "proc/1/cgroup") for name in _CGROUPS)


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
