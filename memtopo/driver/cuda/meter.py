"""Measures copies between GPUs, and between a GPU and the host, in the way of nvbandwidth.

Copies are queued one behind the other, and events around them take the time; each figure is the median of several such
series. A GPU gives one buffer of 64 MiB. The latency of an engine is that of copies of a few bytes, each behind the one
before, all of them queued by the time that the first begins. That of a kernel is of loads whose address comes from the
load before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from cuda.bindings import driver as cuda

from memtopo.driver.cuda.calling import call
from memtopo.driver.cuda.trial_kernels import Kernels
from memtopo.driver.types import Attribute, DriverError

SIZE = 64 << 20
COPIES, WARM_UP, SERIES = 128, 16, 5
FEW, BURST = 16, 64
"""Bytes of a copy whose latency is taken, and how many of them make one series."""
LOADS = 2_000
THREADS, BLOCKS_PER_SM = 512, 4

_PORTABLE = 1
_VECTOR = 16

Rates = dict[str, dict[str, int | None]]
"""By `engine_write` and so on: bytes per second, and nanoseconds for a few bytes."""


class CudaMeter:
    """Keeps contexts, and nothing else, from one measurement to the next."""

    def __init__(self) -> None:
        self._kernels = Kernels()
        self._contexts: dict[int, Any] = {}

    def peers(self, device: int, peer: int) -> Rates:
        """What `device` writes into the memory of `peer`, and reads from it. Raises `DriverError`."""
        with ExitStack() as undo:
            theirs = undo.enter_context(self._buffer(peer))
            own = undo.enter_context(self._buffer(device))
            undo.enter_context(self._current(device))
            self._enable(peer)
            ways: Rates = {"engine_write": self._engine(theirs, own), "engine_read": self._engine(own, theirs)}
            ways["sm_write"] = self._sm(device, theirs, own)
            ways["sm_read"] = self._sm(device, own, theirs)
            call(cuda.cuMemcpyHtoD, theirs, theirs.to_bytes(8, "little"), 8)
            ways["sm_read"]["latency_ns"] = self._chased(theirs, own)
            return ways

    def host(self, device: int) -> Rates:
        """What goes from the host's memory to `device`, and back. Raises `DriverError`."""
        _stay_near(device)
        with self._buffer(device) as own, self._current(device), ExitStack() as undo:
            host = int(call(cuda.cuMemHostAlloc, SIZE, _PORTABLE)[1])
            undo.callback(call, cuda.cuMemFreeHost, host)
            ways: Rates = {"engine_write": self._engine(own, host), "engine_read": self._engine(host, own)}
            # A kernel reads host memory on its way to the GPU, and writes it on its way back.
            ways["sm_write"] = self._sm(device, own, host)
            ways["sm_read"] = self._sm(device, host, own)
            ctypes.memmove(host, host.to_bytes(8, "little"), 8)
            ways["sm_write"]["latency_ns"] = self._chased(host, own)
            return ways

    @contextmanager
    def _current(self, device: int) -> Iterator[None]:
        if device not in self._contexts:
            self._contexts[device] = call(cuda.cuDevicePrimaryCtxRetain, device)[1]
        call(cuda.cuCtxPushCurrent, self._contexts[device])
        try:
            yield
        finally:
            call(cuda.cuCtxPopCurrent)

    @contextmanager
    def _buffer(self, device: int) -> Iterator[int]:
        with self._current(device):
            address = int(call(cuda.cuMemAlloc, SIZE)[1])
            call(cuda.cuMemsetD8, address, 0, SIZE)
        try:
            yield address
        finally:
            with self._current(device):
                call(cuda.cuMemFree, address)

    def _enable(self, peer: int) -> None:
        try:
            call(cuda.cuCtxEnablePeerAccess, self._contexts[peer], 0)
        except DriverError as error:
            if error.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                raise

    def _engine(self, to: int, from_: int) -> dict[str, int | None]:
        def copy(stream: object) -> None:
            call(cuda.cuMemcpyAsync, to, from_, SIZE, stream)

        def few(stream: object) -> None:
            for _ in range(BURST):
                call(cuda.cuMemcpyAsync, to, from_, FEW, stream)

        latency = _timed(few, 1, before=copy) / BURST
        return {"bytes_per_second": round(SIZE / _timed(copy, COPIES)), "latency_ns": round(latency * 1e9)}

    def _sm(self, device: int, to: int, from_: int) -> dict[str, int | None]:
        attribute = cuda.CUdevice_attribute(int(Attribute.MULTIPROCESSOR_COUNT))
        blocks = BLOCKS_PER_SM * int(call(cuda.cuDeviceGetAttribute, attribute, device)[1])

        def copy(stream: object) -> None:
            vectors = SIZE // _VECTOR
            self._kernels.launch("copy", to, from_, vectors, blocks=blocks, threads=THREADS, stream=stream)

        return {"bytes_per_second": round(SIZE / _timed(copy, COPIES)), "latency_ns": None}

    def _chased(self, at: int, sink: int) -> int:
        """Nanoseconds for a load that waits for the one before it: the word at `at` is its own address."""
        seconds = _timed(lambda stream: self._kernels.launch("chase", at, sink, LOADS, stream=stream), 1)
        return round(seconds / LOADS * 1e9)


_Work = Callable[[object], object]


def _timed(work: _Work, count: int, *, before: _Work | None = None) -> float:
    """Seconds for one of `count` works in a row, in the current context: the median of several series.

    What comes `before` them is the work itself, or whatever is long enough that all of them are queued meanwhile.
    """
    with ExitStack() as undo:
        stream = call(cuda.cuStreamCreate, 1)[1]
        undo.callback(call, cuda.cuStreamDestroy, stream)
        events = [call(cuda.cuEventCreate, 0)[1] for _ in range(2)]
        for event in events:
            undo.callback(call, cuda.cuEventDestroy, event)
        return median(_series(work, count, before or work, stream, events) for _ in range(SERIES))


def _series(work: _Work, count: int, before: _Work, stream: object, events: list[Any]) -> float:
    for _ in range(WARM_UP):
        before(stream)
    call(cuda.cuEventRecord, events[0], stream)
    for _ in range(count):
        work(stream)
    call(cuda.cuEventRecord, events[1], stream)
    call(cuda.cuStreamSynchronize, stream)
    return float(call(cuda.cuEventElapsedTime, *events)[1]) / 1e3 / count


def _stay_near(device: int) -> None:
    """Run on the CPUs of the GPU's nearest NUMA node, so that host memory comes from there."""
    with suppress(DriverError, OSError, ValueError):
        node = int(call(cuda.cuDeviceGetAttribute, cuda.CUdevice_attribute(int(Attribute.HOST_NUMA_ID)), device)[1])
        told = Path(f"/sys/devices/system/node/node{node}/cpulist").read_text().strip()
        parts = (part.partition("-") for part in told.split(",") if part)
        near = {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}
        os.sched_setaffinity(0, near)
