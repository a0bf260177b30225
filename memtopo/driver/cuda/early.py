"""Initialisation of CUDA in a thread, beside what the caller does until it opens the driver."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from types import ModuleType


def start_initialisation() -> None:
    """Start `cuInit(0)` in a thread, without waiting for it: `open_cuda` does.

    Errors are ignored, since the same ones occur in `open_cuda`. Nothing happens where a thread cannot be started.
    """
    with suppress(Exception):  # not just ImportError: another package may have the name
        from cuda.bindings import driver  # noqa: PLC0415  # may be missing

        Thread(target=_initialise, args=(driver,), name="cuInit").start()


def _initialise(driver: ModuleType) -> None:
    with suppress(Exception):
        driver.cuInit(0)
