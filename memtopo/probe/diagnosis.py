"""Diagnosis: the properties of the system that decide about trials, and the likely cause of one that did not work."""

from __future__ import annotations

import ctypes.util
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from memtopo.driver.types import PROPERTY_FLAGS, Location, LocationKind, gpu
from memtopo.machine import Machine, Surroundings, Trial
from memtopo.probe.trial_resources import VULKAN

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


_FEW_FILES = 256


@dataclass(frozen=True, slots=True)
class Cause:
    """A trial that did not work: `what` and `where`, the driver's `error`, its likely cause, and what to do.

    `where` is a location or, for peers, `gpu0 to gpu1`. The names are keys of `memtopo probe --json`.
    """

    what: str
    where: str
    error: str
    likely: str | None = None
    do: str | None = None


class _Case(NamedTuple):
    """A trial that did not work, with the data that may explain it."""

    name: str
    location: Location
    trial: Trial
    machine: Machine
    around: Surroundings | None

    @property
    def error(self) -> str:
        return (self.trial.error or "").removeprefix("CUDA_ERROR_")

    @property
    def is_mig(self) -> bool:
        return self.location.kind == LocationKind.GPU and " MIG " in f"{self.machine.devices[self.location.id].name} "


_Explanation = tuple[str, str | None]


def causes(machine: Machine) -> list[Cause]:
    """Causes of the trials that did not work, in their order; those not advertised either need none."""
    return [_cause(where, case) for where, case in _cases(machine)]


def _cases(machine: Machine) -> Iterator[tuple[str, _Case]]:
    around = machine.surroundings
    for location, memory in machine.locations.items():
        for name, trial in memory.trials.items():
            if _failed(trial):
                yield str(location), _Case(name, location, trial, machine, around)
    for a, row in enumerate(machine.peers):
        for b, link in enumerate(row):
            if link and link.store and _failed(link.store):
                yield f"gpu{a} to gpu{b}", _Case("store", gpu(b), link.store, machine, around)


def _failed(trial: Trial) -> bool:
    announced = trial.advertised is False and trial.works is not None
    return not announced and (trial.works is False or trial.error is not None)


def _cause(where: str, case: _Case) -> Cause:
    trial = case.trial
    error = f"{trial.call}: {trial.error}" if trial.call and trial.error else trial.error or _silent(case)
    likely, do = next((found for rule in _RULES if (found := rule(case))), (None, None))
    return Cause(case.name, where, error, likely, do)


def _silent(case: _Case) -> str:
    if case.name in PROPERTY_FLAGS:
        return "it was created without"
    return "no error, but the bytes did not arrive"


def _out_of_memory(case: _Case) -> _Explanation | None:
    if case.error != "OUT_OF_MEMORY":
        return None
    return (
        "the GPU is full" if case.location.kind == LocationKind.GPU else "no memory is free there",
        "probe it when idle",
    )


def _context(case: _Case) -> _Explanation | None:
    if case.trial.call != "cuDevicePrimaryCtxRetain":
        return None
    if case.error == "DEVICE_UNAVAILABLE":
        return "another process has the GPU to itself, or its compute mode forbids contexts", "nvidia-smi -c 0"
    return "the GPU is in an error state", "look for Xid in dmesg, and at nvidia-smi -q; reset it when it is idle"


def _killed(case: _Case) -> _Explanation | None:
    if case.error == "TIMEOUT":
        return "the trial hung, and its process was killed", "look for Xid in dmesg"
    if case.error == "SIGSEGV":
        return "the CPU may not touch that memory; the trial's process died of it", None
    return ("the trial's process died", "look at dmesg") if case.error.startswith(("SIG", "EXIT")) else None


def _mig(case: _Case) -> _Explanation | None:
    if case.is_mig and case.name in ("store", "ipc", "ipc-event", "fabric", "fd+fabric", "pool-fabric"):
        return "the GPU is a MIG instance, which cannot do this", "use a whole GPU"
    return None


def _wsl(case: _Case) -> _Explanation | None:
    if case.around and case.around.wsl and case.name != "vmm":
        return "this is WSL, whose driver cannot do all that Linux's can", "use Linux itself"
    return None


def _fabric(case: _Case) -> _Explanation | None:
    if "fabric" not in case.name:
        return None
    if case.error == "NOT_PERMITTED" and case.around and not case.around.imex_channels:
        pass_on = (
            "pass /dev/nvidia-caps-imex-channels/channel0 on to the container, or " if case.around.container else ""
        )
        return "there is no IMEX channel", f"{pass_on}load the module with NVreg_CreateImexChannel0=1"
    if case.error == "NOT_PERMITTED":
        return "there is no IMEX channel that may be opened", "look at /dev/nvidia-caps-imex-channels"
    return "the NVLink fabric is not ready", "look at Fabric in nvidia-smi -q, and at nvidia-fabricmanager"


def _vulkan(case: _Case) -> _Explanation | None:
    if case.trial.call != VULKAN:
        return None
    pass_on = "start the container with NVIDIA_DRIVER_CAPABILITIES=all, or " if _contained(case) else ""
    return "Vulkan does not see this GPU, or cannot use it", f"{pass_on}set VK_DRIVER_FILES to NVIDIA's nvidia_icd.json"


def _contained(case: _Case) -> bool:
    return case.around is not None and case.around.container


def _numa(case: _Case) -> _Explanation | None:
    if case.location.kind == LocationKind.GPU or not _contained(case):
        return None
    return "the container may not choose NUMA nodes", "start it with --cap-add SYS_NICE"


def _isolated(case: _Case) -> _Explanation | None:
    if case.name not in ("ipc", "ipc-event", "fd", "pool-fd") or not case.around:
        return None
    if case.around.open_files < _FEW_FILES:
        return f"this process may open {case.around.open_files} files only", "ulimit -n 4096"
    if case.name.startswith("ipc") and case.around.container:
        return "the container keeps processes apart", "start it with --ipc=host, or --cap-add SYS_PTRACE"
    if case.name.startswith("ipc") and case.around.ptrace_scope:
        cause = f"ptrace_scope is {case.around.ptrace_scope}: no process may attach to another"
        return cause, "sysctl kernel.yama.ptrace_scope=0"
    return None


def _lost_store(case: _Case) -> _Explanation | None:
    if case.name != "store":
        return None
    if not case.trial.error:
        return (
            "stores to the peer are lost on the way: IOMMU or ACS",
            "turn them off in the BIOS, or stage through host",
        )
    return "the two GPUs have no path to each other", "look at nvidia-smi topo -p2p rw"


def _old_driver(case: _Case) -> _Explanation | None:
    bindings = case.around.bindings if case.around else None
    if (
        case.error not in ("NOT_FOUND", "NOT_SUPPORTED", "INVALID_VALUE")
        or not bindings
        or not _older(case.machine.driver.cuda, bindings)
    ):
        return None
    return f"the driver (CUDA {case.machine.driver.cuda}) is older than cuda-bindings {bindings}", "update the driver"


def _older(driver: str, bindings: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:2] if part.isdecimal()]

    return numbers(driver) < numbers(bindings)


_RULES: tuple[Callable[[_Case], _Explanation | None], ...] = (
    _out_of_memory, _context, _killed, _mig, _wsl, _fabric, _vulkan, _numa, _isolated, _lost_store, _old_driver,
)  # fmt: skip
