"""Switches of 4 GiB in chunks of 2 MiB to a state without them and back, compared with a plain loop over cuda.bindings.

The loop makes the calls that such a switch needs: unmap and release each chunk; create and map each, and set access
once. Copies alone are 16 of 256 MiB. The last loop makes its calls beside the copies, part by part, as a switch does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memtopo import language, planner
from memtopo.common.errors import Unavailable
from memtopo.driver.ledger import Ledger
from memtopo.drivers.target import Target, resolve
from memtopo.language.names import AWAKE
from memtopo.machine import MachineLine
from memtopo.rules import validate
from memtopo.run.apply import ThisProcess
from memtopo.run.process_run import ProcessRun
from memtopo.session.composition import RunRequest

CHUNKS = 2048
SIZE = 2 << 20
TOTAL = CHUNKS * SIZE
PART = 128
ROUNDS = 8
KEEPERS = ("host:0", "pinned")
SPEC = f"""
memtopo: 1
name: bench
ranges: {{kv: {{size: {TOTAL >> 20}MiB}}}}
chunks: {{page: {{location: gpu0, size: 2MiB, count: {CHUNKS}}}}}
map: {{kv: [page]}}
access: {{kv: {{gpu0: rw}}}}
states:
  dropped: {{drop: kv}}
  offloaded-0: {{offload: {{kv: "host:0"}}}}
  offloaded-1: {{offload: {{kv: pinned}}}}
"""

Times = dict[str, list[float]]


def main() -> None:
    """Print the times in ms, and the median ratios of the rounds."""
    try:
        local = resolve("local")
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    print(f"{local.machine.devices[0].name}, 4 GiB as {CHUNKS:,} chunks of 2 MiB, median of {ROUNDS} rounds")
    with _built(local) as run, _loop() as loop:
        _dropped(run, loop)
        for index, keeper in enumerate(KEEPERS):
            loop.choose(keeper)
            _offloaded(run, loop, keeper, f"offloaded-{index}")


def _dropped(run: ThisProcess, loop: Loop) -> None:
    times = _rounds(
        {"sleep": lambda: run.switch("dropped", check="none"), "unmap and release": loop.sleep},
        {"wake": lambda: run.switch(AWAKE, check="none"), "create, map and grant": loop.wake},
        {"check by queries": run.recheck},
    )
    _print("", times)
    _ratio("sleep to bare calls", times["sleep"], times["unmap and release"], 1.10)
    _ratio("wake to bare calls", times["wake"], times["create, map and grant"], 1.10)


def _offloaded(run: ThisProcess, loop: Loop, keeper: str, state: str) -> None:
    times = _rounds(
        {"copy out": loop.copy_out},
        {"sleep": lambda: run.switch(state, check="none"), "unmap and release": loop.sleep},
        {"wake": lambda: run.switch(AWAKE, check="none"), "create, map and grant": loop.wake},
        {"copy in": loop.copy_in},
        {"sleep by a loop": lambda: loop.sleep(copies=True)},
        {"wake by a loop": lambda: loop.wake(copies=True)},
    )
    _print(f"{keeper}: ", times)
    larger = list(map(max, times["copy out"], times["unmap and release"]))
    _ratio("sleep to copy or calls", times["sleep"], larger, 1.15)
    # The bound of a wake that does not overlap grants with copies.
    grants = loop.grants[-ROUNDS:]
    serial = list(map(sum, zip(times["copy in"], grants, strict=True)))
    larger = list(map(max, times["copy in"], times["create, map and grant"]))
    print(f"{keeper}: set access alone         {statistics.median(grants) * 1e3:6.1f} ms")
    print(f"wake to copy or calls            {_middle(times['wake'], larger):6.3f}")
    print(f"wake by a loop to copy or calls  {_middle(times['wake by a loop'], larger):6.3f}")
    _ratio("wake to copy and grants", times["wake"], serial, 1.15)


class Loop:
    """Memory in a reservation of its own, with descriptors prepared, and host memory for its bytes."""

    def __init__(self) -> None:
        from cuda.bindings import driver as cuda

        self._cuda: Any = cuda
        self._properties = _properties(cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE)
        self._access = cuda.CUmemAccessDesc()
        self._access.location = self._properties.location
        self._access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._base = self._reserved()
        start = time.perf_counter()
        self._node = self._reserved()
        self._host = self._one(cuda.cuMemCreate(TOTAL, _properties(_numa()), 0))
        self._one(cuda.cuMemMap(self._node, TOTAL, 0, self._host, 0))
        self._one(cuda.cuMemSetAccess(self._node, TOTAL, [self._access], 1))
        middle = time.perf_counter()
        self._pinned = int(self._one(cuda.cuMemHostAlloc(TOTAL, cuda.CU_MEMHOSTALLOC_PORTABLE)))
        print(f"creation of a chunk of host:0    {(middle - start) * 1e3:6.1f} ms")
        print(f"allocation of pinned memory      {(time.perf_counter() - middle) * 1e3:6.1f} ms")
        self._area = self._node
        self._events = [self._one(cuda.cuEventCreate(2)) for _ in range(CHUNKS // PART)]
        self._handles: list[Any] = [None] * CHUNKS
        self.grants: list[float] = []
        """Seconds of setting access, for each wake without copies."""
        self.wake()

    def sleep(self, *, copies: bool = False) -> None:
        """Unmap and release every chunk, with `copies` each part of them after its copy."""
        if not copies:
            self._unmap(range(CHUNKS))
            return
        parts = [range(first, first + PART) for first in range(0, CHUNKS, PART)]
        for part, event in zip(parts, self._events, strict=True):
            self._copy(self._area, self._base, part)
            self._one(self._cuda.cuEventRecord(event, 0))
        for part, event in zip(parts, self._events, strict=True):
            self._one(self._cuda.cuEventSynchronize(event))
            self._unmap(part)

    def wake(self, *, copies: bool = False) -> None:
        """Create and map every chunk, and set access, with `copies` part by part."""
        for first in range(0, CHUNKS, PART if copies else CHUNKS):
            part = range(first, first + (PART if copies else CHUNKS))
            self._map(part)
            if copies:
                self._copy(self._base, self._area, part)
        self._one(self._cuda.cuCtxSynchronize())

    def choose(self, keeper: str) -> None:
        """Choose what keeps the bytes."""
        self._area = self._pinned if keeper == "pinned" else self._node

    def copy_out(self) -> None:
        """Copy all bytes to the area."""
        self._copies(self._area, self._base)

    def copy_in(self) -> None:
        """Copy all bytes back."""
        self._copies(self._base, self._area)

    def close(self) -> None:
        """Release everything."""
        cuda = self._cuda
        self.sleep()
        for event in self._events:
            self._one(cuda.cuEventDestroy(event))
        self._one(cuda.cuMemFreeHost(self._pinned))
        self._one(cuda.cuMemUnmap(self._node, TOTAL))
        self._one(cuda.cuMemRelease(self._host))
        for address in (self._node, self._base):
            self._one(cuda.cuMemAddressFree(address, TOTAL))

    def _reserved(self) -> int:
        return int(self._one(self._cuda.cuMemAddressReserve(TOTAL, 0, 0, 0)))

    def _unmap(self, part: range) -> None:
        cuda = self._cuda
        for index in part:
            (error,) = cuda.cuMemUnmap(self._base + index * SIZE, SIZE)
            assert not error
        for index in part:
            (error,) = cuda.cuMemRelease(self._handles[index])
            assert not error

    def _map(self, part: range) -> None:
        cuda, properties = self._cuda, self._properties
        for index in part:
            error, self._handles[index] = cuda.cuMemCreate(SIZE, properties, 0)
            assert not error
        for index in part:
            (error,) = cuda.cuMemMap(self._base + index * SIZE, SIZE, 0, self._handles[index], 0)
            assert not error
        size, start = len(part) * SIZE, time.perf_counter()
        self._one(cuda.cuMemSetAccess(self._base + part[0] * SIZE, size, [self._access], 1))
        if len(part) == CHUNKS:
            self.grants.append(time.perf_counter() - start)

    def _copy(self, target: int, source: int, part: range) -> None:
        at = part[0] * SIZE
        self._one(self._cuda.cuMemcpyAsync(target + at, source + at, len(part) * SIZE, 0))

    def _copies(self, target: int, source: int) -> None:
        for first in range(0, CHUNKS, PART):
            self._copy(target, source, range(first, first + PART))
        self._one(self._cuda.cuCtxSynchronize())

    def _one(self, answer: tuple[Any, ...]) -> Any:
        """Result of a call that succeeded, if it has one."""
        assert not answer[0], answer[0]
        return answer[1] if len(answer) > 1 else None


def _numa() -> Any:
    from cuda.bindings import driver as cuda

    return cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA


def _properties(kind: Any) -> Any:
    from cuda.bindings import driver as cuda

    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = kind
    properties.location.id = 0
    return properties


@contextmanager
def _built(local: Target) -> Iterator[ThisProcess]:
    geometry = validate(language.read_text(SPEC.encode(), "bench"), local.machine).geometry
    assert geometry is not None
    plan = planner.plan(geometry, local.machine)
    ledger = Ledger(local.open())
    request = RunRequest(plan, geometry, MachineLine("local", simulated=False, devices=(), driver=""))
    run = ThisProcess(ProcessRun(request, ledger))
    run.build()
    ledger.ctx_push_current(run.run.execution.layout.contexts[0])
    yield run
    ledger.ctx_pop_current()
    run.take_down()
    assert ledger.empty


@contextmanager
def _loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def _rounds(*groups: dict[str, Callable[[], object]]) -> Times:
    """Seconds of each part in every round but the first, which computes what later ones reuse.

    The parts of a group go first by turns.
    """
    times: Times = {name: [] for group in groups for name in group}
    for turn in range(ROUNDS + 1):
        for group in groups:
            for name in list(group)[:: 1 if turn % 2 else -1]:
                start = time.perf_counter()
                group[name]()
                times[name].append(time.perf_counter() - start)
    return {name: each[1:] for name, each in times.items()}


def _print(prefix: str, times: Times) -> None:
    for name, each in times.items():
        print(f"{prefix + name:32} {statistics.median(each) * 1e3:6.1f} ms")


def _ratio(name: str, ours: list[float], others: list[float], bound: float) -> None:
    print(f"ratio of {name:24}{_middle(ours, others):6.3f}   (at most {bound:.2f})", flush=True)


def _middle(ours: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, others, strict=True))
