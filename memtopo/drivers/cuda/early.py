"""Calls of the CUDA driver that take longest, in threads beside the imports of a command: `cuInit`, and contexts.

Their errors are ignored: the same calls are made again where their results are needed, and fail there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memtopo.drivers.cuda.nvml import GpuReading


class EarlyStart:
    """The early calls of a process, none until `start`. Its other methods wait for what they need of them."""

    def __init__(self) -> None:
        self._thread: _Initialisation | None = None

    def start(self, gpus: Callable[[], Collection[int]]) -> None:
        """Start `cuInit(0)`, and then retain the primary contexts of some GPUs, without waiting for any of it.

        `gpus` returns their ordinals; it is called in a thread after `cuInit`. Nothing happens where the bindings are
        missing, or a thread cannot be started.
        """
        with suppress(Exception):  # not just ImportError: another package may have the name
            from cuda.bindings import driver  # noqa: PLC0415  # may be missing

            thread = _Initialisation(driver, gpus)
            thread.start()
            self._thread = thread

    def take_context(self, device: int) -> int | None:
        """Return the context of a GPU that was retained early, once, for the caller to release; None if none was."""
        contexts = self._contexts()
        if device not in contexts:
            return None
        contexts[device].done.wait()
        return contexts.pop(device).context

    def release_others(self, devices: Collection[int]) -> None:
        """Release the contexts of all GPUs but these, if there are any. Errors are ignored."""
        for device in self._contexts().keys() - set(devices):
            if self.take_context(device) is not None:
                from cuda.bindings import driver  # noqa: PLC0415

                driver.cuDevicePrimaryCtxRelease(device)

    def readings(self, uuids: Sequence[str | None]) -> list[GpuReading]:
        """Readings of GPUs as of `nvml.readings`, from before contexts that were retained early took memory."""
        from memtopo.drivers.cuda import nvml  # noqa: PLC0415  # cuInit is started before this is imported

        early = self._initialised.readings if self._initialised else {}
        later = [uuid for uuid in uuids if uuid not in early]
        found = {**early, **dict(zip(later, nvml.readings(later), strict=True))} if later else early
        return [found[uuid] for uuid in uuids]

    @property
    def _initialised(self) -> _Initialisation | None:
        if self._thread:
            self._thread.done.wait()
        return self._thread

    def _contexts(self) -> dict[int, _Retained]:
        return self._initialised.contexts if self._initialised else {}


EARLY_START = EarlyStart()
"""That of this process."""


class _Call(Thread):
    """Thread whose `done` is set at its end: an interrupted `join` would take it for ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.done = Event()

    def run(self) -> None:
        try:
            with suppress(Exception):
                self.call()
        finally:
            self.done.set()

    def call(self) -> None:
        """Make the calls of the driver. An exception ends them."""
        raise NotImplementedError


class _Initialisation(_Call):
    """`cuInit`, readings of the GPUs that get a context, and the threads that retain these contexts."""

    def __init__(self, driver: ModuleType, gpus: Callable[[], Collection[int]]) -> None:
        super().__init__("cuInit")
        self._driver, self._gpus = driver, gpus
        self.readings: Mapping[str | None, GpuReading] = {}
        self.contexts: dict[int, _Retained] = {}

    def call(self) -> None:
        self._driver.cuInit(0)
        if gpus := self._gpus():
            self._retain(gpus)

    def _retain(self, gpus: Collection[int]) -> None:
        from memtopo.driver.types import uuid_text  # noqa: PLC0415
        from memtopo.drivers.cuda import nvml  # noqa: PLC0415
        from memtopo.drivers.cuda.bindings import call, get_uuid  # noqa: PLC0415

        devices = sorted({*gpus} & {*range(call(self._driver.cuDeviceGetCount)[1])})
        uuids = [uuid_text(call(get_uuid, device)[1].bytes) for device in devices]
        self.readings = dict(zip(uuids, nvml.readings(uuids), strict=True))
        for device in devices:
            retained = _Retained(self._driver, device)
            retained.start()
            self.contexts[device] = retained


class _Retained(_Call):
    """Retains the primary context of a GPU; `context` is None until then, and after an error."""

    def __init__(self, driver: ModuleType, device: int) -> None:
        super().__init__(f"context of gpu{device}")
        self._driver, self._device = driver, device
        self.context: int | None = None

    def call(self) -> None:
        error, context = self._driver.cuDevicePrimaryCtxRetain(self._device)
        self.context = None if error else int(context)
