"""Measures copies between GPUs, and between a GPU and the host, in the way of nvbandwidth.

Copies are queued one behind the other, and events around them take the time; each figure is the median of several such
series. The buffers have 512 MiB of addresses, and the same 64 MiB of a GPU behind them again and again: a copy of less
would show the time that starting it takes, and a probe is to take little memory. The latency of an engine is that of
copies of a few bytes, each behind the one before, all of them queued by the time that the first begins. That of a
kernel is of loads whose address comes from the load before.
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

from memtopo.driver.cuda.bindings import access_descriptors, allocation_prop, call
from memtopo.driver.cuda.trials import Kernels
from memtopo.driver.types import Access, Attribute, DriverError, Grant, Properties, gpu

SIZE, PHYSICAL = 512 << 20, 64 << 20
COPIES, WARM_UP, SERIES = 16, 4, 5
FEW, BURST = 16, 64
"""Bytes of a copy whose latency is taken, and how many of them make one series."""
LOADS = 10_000
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
            undo.enter_context(self._current(peer))  # a GPU without a context is slow to answer others
            undo.enter_context(self._current(device))
            theirs = undo.enter_context(_buffer(peer, device))
            own = undo.enter_context(_buffer(device, device))
            ways: Rates = {"engine_write": self._engine(theirs, own), "engine_read": self._engine(own, theirs)}
            ways["sm_write"] = self._sm(device, theirs, own)
            ways["sm_read"] = self._sm(device, own, theirs)
            call(cuda.cuMemcpyHtoD, theirs, theirs.to_bytes(8, "little"), 8)
            ways["sm_read"]["latency_ns"] = self._chased(theirs, own)
            return ways

    def host(self, device: int) -> Rates:
        """What goes from the host's memory to `device`, and back. Raises `DriverError`."""
        _stay_near(device)
        with self._current(device), _buffer(device, device) as own, ExitStack() as undo:
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


@contextmanager
def _buffer(owner: int, user: int) -> Iterator[int]:
    """Addresses at which one GPU uses the memory of another, or its own."""
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
