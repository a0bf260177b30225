"""Diagnosis: the properties of the system that decide about trials, and the likely cause of one that did not work."""

from __future__ import annotations

import ctypes.util
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

from msgspec import Struct

from memtopo.common.files import text_of
from memtopo.driver.types import PROPERTY_FLAGS, Location, LocationKind, gpu
from memtopo.machine import Device, Machine, Surroundings, Trial
from memtopo.probe.supervisor import VULKAN

_UNLIMITED = 1 << 60
"""Limit from which on a control group of version 1 has none."""

_CGROUPS = ("docker", "containerd", "kubepods", "libpod", "lxc")


def read(root: Path = Path("/")) -> Surroundings:
    """Read the environment of this process; `root` is that of the file system."""
    has_files = (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
    in_group = any(name in text_of(root / "proc/1/cgroup") for name in _CGROUPS)
    # None if no control group around this process limits its memory.
    limits = [limit for file in _limits(root) if (limit := _number(text_of(file))) is not None and limit < _UNLIMITED]
    return Surroundings(
        container=has_files or in_group or "container" in os.environ,
        wsl="microsoft" in text_of(root / "proc/version").lower(),
        imex_channels=len([*(root / "dev/nvidia-caps-imex-channels").glob("*")]),
        ptrace_scope=_number(text_of(root / "proc/sys/kernel/yama/ptrace_scope")),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        vulkan=ctypes.util.find_library("vulkan") is not None,
        bindings=_bindings(),
        locked_bytes=None if (locked := resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]) < 0 else locked,
        group_bytes=min(limits, default=None),
    )


def ignored_devices(visible: str | None, count: int) -> str | None:
    """Entries of `CUDA_VISIBLE_DEVICES` that the driver ignored, if it sees fewer GPUs than are named there."""
    entries = [entry.strip() for entry in (visible or "").split(",")]
    return ",".join(entries[count:]) if visible and len(entries) > count else None


def is_mig(device: Device) -> bool:
    """Return whether a device is a MIG instance, a part of a GPU."""
    return " MIG " in f"{device.name} "


def _limits(root: Path) -> Iterator[Path]:
    """Files with the memory limits of the control groups of this process, of version 1 or 2."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path(path.strip("/"))
        for each in (group, *group.parents):
            if not controllers:
                yield root / "sys/fs/cgroup" / each / "memory.max"
            elif "memory" in controllers.split(","):
                yield root / "sys/fs/cgroup/memory" / each / "memory.limit_in_bytes"


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _bindings() -> str | None:
    with suppress(PackageNotFoundError):
        return version("cuda-bindings")
    return None


_FEW_FILES = 256


class Cause(Struct, frozen=True):
    """A trial that did not work: `what` and `where`, the driver's `error`, its likely cause, and what to do.

    `where` is a location or, for peers, `gpu0 to gpu1`. The names are keys of `memtopo probe --json`.
    """

    what: str
    where: str
    error: str
    likely: str | None = None
    do: str | None = None


_Explanation = tuple[str, str | None]
_MIG = ("store", "ipc", "ipc-event", "fabric", "fd+fabric", "pool-fabric")
"""What a MIG instance cannot do."""
_UNKNOWN = Surroundings(container=False, wsl=False, imex_channels=1, open_files=_FEW_FILES, vulkan=True)
"""Surroundings that explain nothing."""


class _Case(Struct, frozen=True):
    """A trial that did not work, with the data that may explain it."""

    name: str
    location: Location
    trial: Trial
    machine: Machine

    @property
    def error(self) -> str:
        return (self.trial.error or "").removeprefix("CUDA_ERROR_")

    @property
    def around(self) -> Surroundings:
        return self.machine.surroundings or _UNKNOWN

    @property
    def device(self) -> Device | None:
        return self.machine.devices[self.location.id] if self.location.kind == LocationKind.GPU else None


def causes(machine: Machine) -> list[Cause]:
    """Causes of the trials that did not work, in their order; those not advertised either need none."""
    return [_cause(where, case) for where, case in _cases(machine) if _failed(case.trial)]


def _cases(machine: Machine) -> Iterator[tuple[str, _Case]]:
    for location, memory in machine.locations.items():
        yield from ((str(location), _Case(name, location, each, machine)) for name, each in memory.trials.items())
    for a, row in enumerate(machine.peers):
        for b, link in enumerate(row):
            if link and link.store:
                yield f"gpu{a} to gpu{b}", _Case("store", gpu(b), link.store, machine)


def _failed(trial: Trial) -> bool:
    announced = trial.advertised is False and trial.works is not None
    return not announced and (trial.works is False or trial.error is not None)


def _cause(where: str, case: _Case) -> Cause:
    trial = case.trial
    silent = "it was created without" if case.name in PROPERTY_FLAGS else "no error, but the bytes did not arrive"
    error = f"{trial.call}: {trial.error}" if trial.call and trial.error else trial.error or silent
    likely, do = next(chain(_of_process(case), _of_system(case), _of_sharing(case)), (None, None))
    return Cause(case.name, where, error, likely, do)


def _of_process(case: _Case) -> Iterator[_Explanation]:
    """Explanations by the end of a trial's process, its context, and its memory; the first one holds."""
    if case.error == "OUT_OF_MEMORY":
        yield "the GPU is full" if case.device else "no memory is free there", "probe it when idle"
    if case.trial.call == "cuDevicePrimaryCtxRetain":
        if case.error == "DEVICE_UNAVAILABLE":
            yield "another process has the GPU to itself, or its compute mode forbids contexts", "nvidia-smi -c 0"
        yield "the GPU is in an error state", "look for Xid in dmesg, and at nvidia-smi -q; reset it when it is idle"
    if case.error == "TIMEOUT":
        yield "the trial hung, and its process was killed", "look for Xid in dmesg"
    if case.error == "SIGSEGV":
        yield "the CPU cannot access that memory; the process of the trial died", None
    if case.error.startswith(("SIG", "EXIT")):
        yield "the trial's process died", "look at dmesg"


def _of_system(case: _Case) -> Iterator[_Explanation]:
    """Explanations by the system and the kind of GPU."""
    contained = case.around.container
    if case.device and is_mig(case.device) and case.name in _MIG:
        yield "the GPU is a MIG instance, which cannot do this", "use a whole GPU"
    if case.around.wsl and case.name != "vmm":
        yield "this is WSL, whose driver does not support all features of the Linux driver", "use Linux itself"
    if "fabric" in case.name and case.error == "NOT_PERMITTED":
        if not case.around.imex_channels:
            pass_on = "pass /dev/nvidia-caps-imex-channels/channel0 on to the container, or " if contained else ""
            yield "there is no IMEX channel", f"{pass_on}load the module with NVreg_CreateImexChannel0=1"
        yield "no IMEX channel can be opened", "look at /dev/nvidia-caps-imex-channels"
    if "fabric" in case.name:
        yield "the NVLink fabric is not ready", "look at Fabric in nvidia-smi -q, and at nvidia-fabricmanager"
    if case.trial.call == VULKAN:
        pass_on = "start the container with NVIDIA_DRIVER_CAPABILITIES=all, or " if contained else ""
        remedy = f"{pass_on}set VK_DRIVER_FILES to NVIDIA's nvidia_icd.json"
        yield "Vulkan does not see this GPU, or cannot use it", remedy
    if contained and not case.device:
        yield "the container is not permitted to choose NUMA nodes", "start it with --cap-add SYS_NICE"


def _of_sharing(case: _Case) -> Iterator[_Explanation]:
    """Explanations by limits on sharing, by the path between two GPUs, and by the version of the driver."""
    around, ipc = case.around, case.name in ("ipc", "ipc-event")
    if around.open_files < _FEW_FILES and (ipc or case.name in ("fd", "pool-fd")):
        yield f"this process can open only {around.open_files} files", "ulimit -n 4096"
    if ipc and around.container:
        yield "the container keeps processes apart", "start it with --ipc=host, or --cap-add SYS_PTRACE"
    if ipc and around.ptrace_scope:
        cause = f"ptrace_scope is {around.ptrace_scope}: no process is permitted to attach to another"
        yield cause, "sysctl kernel.yama.ptrace_scope=0"
    if case.name == "store" and case.trial.error:
        yield "the two GPUs have no path to each other", "look at nvidia-smi topo -p2p rw"
    if case.name == "store":
        likely = "stores to the peer are lost on the way: IOMMU or ACS"
        yield likely, "turn them off in the BIOS, or stage through host"
    cuda, bindings = case.machine.driver.cuda, around.bindings
    if (
        bindings
        and _numbers(cuda) < _numbers(bindings)
        and case.error in ("NOT_FOUND", "NOT_SUPPORTED", "INVALID_VALUE")
    ):
        yield f"the driver (CUDA {cuda}) is older than cuda-bindings {bindings}", "update the driver"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2] if part.isdecimal()]
