"""The CUDA driver of this machine, or the reason why it cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from memtopo.common.errors import Unavailable
from memtopo.driver.types import DriverError
from memtopo.drivers.cuda.system import inaccessible_devices

if TYPE_CHECKING:
    from memtopo.drivers.cuda.driver import CudaDriver

_SIMULATE = "use --machine h200x2 to validate or simulate without a GPU"
_CAUSES = {
    "CUDA_ERROR_STUB_LIBRARY": "libcuda is the toolkit's stub; take its folder out of LD_LIBRARY_PATH",
    "CUDA_ERROR_OPERATING_SYSTEM": "check that /dev/nvidia* exist and may be opened",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the fabric manager (nvidia-fabricmanager)",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "libcuda and the kernel module are of different releases; reload the module",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "take cuda-compat's libcuda out of LD_LIBRARY_PATH",
}


def open_cuda() -> CudaDriver:
    """Return the CUDA driver, initialised, with at least one GPU.

    Raises `Unavailable` with a hint at the cause: no bindings, no driver, no GPU, or all GPUs hidden.
    """
    driver = _bound()
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

        Thread(target=_initialise, args=(driver.cuInit,)).start()


def _initialise(init: Callable[[int], object]) -> None:
    with suppress(Exception):  # newer bindings raise where there is no driver
        init(0)


def _bound() -> CudaDriver:
    try:
        from memtopo.drivers.cuda.driver import CudaDriver  # noqa: PLC0415  # may be missing
    except ImportError as error:
        message = f"the Python package cuda-bindings cannot be imported ({error})"
        raise Unavailable(message, hint=f"run 'pip install cuda-python', or {_SIMULATE}") from error
    return CudaDriver()


def _unusable(name: str) -> Unavailable:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if name == "CUDA_ERROR_NO_DEVICE" and visible is not None:
        hint = "unset it or name a GPU that 'nvidia-smi -L' lists"
        return Unavailable(f"no GPU is visible: CUDA_VISIBLE_DEVICES is {visible!r}", hint=f"{hint}, or {_SIMULATE}")
    if inaccessible := inaccessible_devices():
        hint = "run as a user with access to them, or pass the GPUs on to the container (--gpus, --device)"
        message = f"no GPU can be used here: {name}: this process may not open {', '.join(inaccessible)}"
        return Unavailable(message, hint=f"{hint}, or {_SIMULATE}")
    cause = _CAUSES.get(name)
    return Unavailable(f"no GPU can be used here: {name}", hint=f"{cause}, or {_SIMULATE}" if cause else _SIMULATE)
