"""Bandwidth and latency of copies between GPUs, and between a GPU and the host, measured like nvbandwidth.

Copies are queued one after another, with events around them for the time; each figure is the median of several such
series. A buffer has 512 MiB of addresses, all of which map the same 64 MiB of a GPU: a smaller copy would measure the
launch, and a probe should take little memory. The latency of a copy engine is that of dependent copies of a few bytes,
all of them queued before the first one begins. The latency of a kernel is that of dependent loads.
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

from memtopo.driver.types import Access, Attribute, DriverError, Grant, Properties, gpu
from memtopo.drivers.cuda import numbers_in
from memtopo.drivers.cuda.bindings import access_descriptors, allocation_prop, call
from memtopo.drivers.cuda.kernels import ContextKernels

SIZE, PHYSICAL = 512 << 20, 64 << 20
COPIES, WARM_UP, SERIES = 16, 4, 5
FEW, BURST = 16, 64
"""Bytes of a copy whose latency is measured, and number of copies in a series."""
LOADS = 10_000
THREADS, BLOCKS_PER_SM = 512, 4

_PORTABLE = 1
_VECTOR = 16

Rates = dict[str, dict[str, int | None]]
"""By `engine_write` and so on: bytes per second, and nanoseconds of latency."""


class CudaMeter:
    """Measurements on the GPUs of this process; contexts are reused."""

    def __init__(self) -> None:
        self._kernels = ContextKernels()
        self._contexts: dict[int, Any] = {}

    def peers(self, device: int, peer: int) -> Rates:
        """Rates of writes by `device` to the memory of `peer`, and of reads from it. Raises `DriverError`."""
        with ExitStack() as undo:
            undo.enter_context(self._current(peer))  # accesses to a GPU without a context are slow
            undo.enter_context(self._current(device))
            theirs = undo.enter_context(_buffer(peer, device))
            own = undo.enter_context(_buffer(device, device))
            ways: Rates = {"engine_write": self._engine(theirs, own), "engine_read": self._engine(own, theirs)}
            ways["sm_write"] = self._sm(device, theirs, own)
            ways["sm_read"] = self._sm(device, own, theirs)
            call(cuda.cuMemcpyHtoD, theirs, theirs.to_bytes(8, "little"), 8)
            ways["sm_read"]["latency_ns"] = self._chase(theirs, own)
            return ways

    def host(self, device: int) -> Rates:
        """Rates between the host's memory and `device`, in both directions. Raises `DriverError`."""
        # Run on the CPUs of the GPU's nearest NUMA node, so that host memory is allocated there.
        with suppress(DriverError, OSError, ValueError):
            node = int(call(cuda.cuDeviceGetAttribute, cuda.CUdevice_attribute(int(Attribute.HOST_NUMA_ID)), device)[1])
            os.sched_setaffinity(0, numbers_in(Path(f"/sys/devices/system/node/node{node}/cpulist").read_text()))
        with self._current(device), _buffer(device, device) as own, ExitStack() as undo:
            host = int(call(cuda.cuMemHostAlloc, SIZE, _PORTABLE)[1])
            undo.callback(call, cuda.cuMemFreeHost, host)
            ways: Rates = {"engine_write": self._engine(own, host), "engine_read": self._engine(host, own)}
            # A kernel reads host memory for a copy to the GPU, and writes it for a copy to the host.
            ways["sm_write"] = self._sm(device, own, host)
            ways["sm_read"] = self._sm(device, host, own)
            ctypes.memmove(host, host.to_bytes(8, "little"), 8)
            ways["sm_write"]["latency_ns"] = self._chase(host, own)
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

    def _chase(self, at: int, sink: int) -> int:
        """Nanoseconds of a load that depends on the load before: the word at `at` is its own address."""
        seconds = _timed(lambda stream: self._kernels.launch("chase", at, sink, LOADS, stream=stream), 1)
        return round(seconds / LOADS * 1e9)


@contextmanager
def _buffer(owner: int, user: int) -> Iterator[int]:
    """Map memory of one GPU for use by another or by itself; yields the address."""
    with ExitStack() as undo:
        chunk = call(cuda.cuMemCreate, PHYSICAL, allocation_prop(Properties(gpu(owner))), 0)[1]
        undo.callback(call, cuda.cuMemRelease, chunk)
        start = int(call(cuda.cuMemAddressReserve, SIZE, 0, 0, 0)[1])
        undo.callback(call, cuda.cuMemAddressFree, start, SIZE)
        for address in range(start, start + SIZE, PHYSICAL):
            call(cuda.cuMemMap, address, PHYSICAL, 0, chunk, 0)
            undo.callback(call, cuda.cuMemUnmap, address, PHYSICAL)
        call(cuda.cuMemSetAccess, start, SIZE, access_descriptors((Grant(gpu(user), Access.RW),)), 1)
        call(cuda.cuMemsetD8, start, 0, PHYSICAL)
        yield start


_Work = Callable[[object], object]


def _timed(work: _Work, count: int, *, before: _Work | None = None) -> float:
    """Seconds for one of `count` consecutive works in the current context: the median of several series.

    The work `before` them, by default the same, must take long enough for all of them to be queued.
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
