"""The CUDA driver of this machine, the system around it, or the reason why it cannot be used.

Other modules of this package need `cuda.bindings`, except for what `nvml` reads by ctypes.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from memtopo.common.errors import Unavailable
from memtopo.common.files import text_of
from memtopo.driver.types import DriverError

if TYPE_CHECKING:
    from memtopo.drivers.cuda.driver import CudaDriver

_RELEASE = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9.]*[0-9])\s")

_TOTAL = re.compile(r"MemTotal: *([0-9]{1,12}) kB")


def kernel_release(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Release of the loaded kernel module, such as `580.159.04`; None if it is unknown."""
    match = _RELEASE.search(text_of(file))
    return match[1] if match else None


def numa_nodes(file: Path = Path("/sys/devices/system/node/has_memory")) -> tuple[int, ...] | None:
    """NUMA nodes with memory; None if they are unknown."""
    return numbers_in(text_of(file)) or None


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers in a list of the system: `0-3,5`. Raises `ValueError`."""
    parts = (part.partition("-") for part in text.strip().split(",") if part)
    return tuple(number for first, _, last in parts for number in range(int(first), int(last or first) + 1))


def numa_bytes(folder: Path = Path("/sys/devices/system/node"), host: int | None = None) -> dict[int, int]:
    """Bytes of the memory of each NUMA node; nodes whose memory is unknown or none are left out.

    None is known if all of them have less than nine tenths of the host's memory, which is `host` bytes: the nodes of a
    virtual machine do not count memory that was added after its start.
    """
    nodes = [name for name in _names(folder) if name.startswith("node") and name[4:].isdecimal()]
    found = {int(name[4:]): _TOTAL.search(text_of(folder / name / "meminfo")) for name in nodes}
    every = {node: int(match[1]) << 10 for node, match in found.items() if match}
    sizes = {node: size for node, size in every.items() if size}
    whole = sum(sizes.values()) * 10 >= (host_memory() if host is None else host) * 9
    return sizes if whole else {}


def host_memory() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def inaccessible_devices(root: Path = Path("/")) -> list[str]:
    """Device files of NVIDIA's driver that this process may not open for reading and writing."""
    files = [Path("/dev") / name for name in _names(root / "dev") if _is_gpu(name)]
    return [str(file) for file in files if not os.access(root / file.relative_to("/"), os.R_OK | os.W_OK)]


def _is_gpu(name: str) -> bool:
    return name in ("nvidiactl", "nvidia-uvm") or (name.startswith("nvidia") and name[6:].isdecimal())


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


_SIMULATE = "name a recorded machine, such as h200x2 (--machine h200x2), to validate or simulate without a GPU"
_CAUSES = {
    "CUDA_ERROR_STUB_LIBRARY": "libcuda is the stub of the toolkit; remove its folder from LD_LIBRARY_PATH",
    "CUDA_ERROR_OPERATING_SYSTEM": "check that /dev/nvidia* exist and can be opened",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager (nvidia-fabricmanager)",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "libcuda and the kernel module are of different releases; reload the module",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "remove the libcuda of cuda-compat from LD_LIBRARY_PATH",
}


def open_cuda() -> CudaDriver:
    """Return the CUDA driver, initialised, with at least one GPU.

    Raises `Unavailable` with a hint at the cause: no bindings, no driver, no GPU, or all GPUs hidden.
    """
    try:
        from memtopo.drivers.cuda.driver import CudaDriver  # noqa: PLC0415  # may be missing
    except ImportError as error:
        message = f"the Python package cuda-bindings cannot be imported ({error})"
        raise Unavailable(message, hint=f"run 'pip install cuda-python', or {_SIMULATE}") from error
    driver = CudaDriver()
    try:
        driver.init()
        count = driver.device_get_count()
    except DriverError as error:
        raise _unusable(error.name) from error
    except Unavailable as error:
        raise Unavailable("no NVIDIA driver is installed here, or it is too old", hint=_SIMULATE) from error
    if not count:
        raise _unusable("CUDA_ERROR_NO_DEVICE")
    return driver


def start_cuda() -> None:
    """Initialise the driver in a thread, where there is one: it takes as long as the imports of a command.

    An error is ignored, since `open_cuda` makes the same call again.
    """
    with suppress(Exception):  # not just ImportError: another package may have the name
        from cuda.bindings import driver  # noqa: PLC0415  # may be missing

        def initialise() -> None:
            with suppress(Exception):  # newer bindings raise where there is no driver
                driver.cuInit(0)

        Thread(target=initialise).start()


def _unusable(name: str) -> Unavailable:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if name == "CUDA_ERROR_NO_DEVICE" and visible is not None:
        hint = "unset it or name a GPU that 'nvidia-smi -L' lists"
        return Unavailable(f"no GPU is visible: CUDA_VISIBLE_DEVICES is {visible!r}", hint=f"{hint}, or {_SIMULATE}")
    if inaccessible := inaccessible_devices():
        hint = "run as a user with access to them, or pass the GPUs on to the container (--gpus, --device)"
        message = f"no GPU can be used here: {name}: this process is not permitted to open {', '.join(inaccessible)}"
        return Unavailable(message, hint=f"{hint}, or {_SIMULATE}")
    cause = _CAUSES.get(name)
    return Unavailable(f"no GPU can be used here: {name}", hint=f"{cause}, or {_SIMULATE}" if cause else _SIMULATE)
