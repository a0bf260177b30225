"""Build and teardown of 8,000 chunks of 2 MiB, compared with a plain loop over cuda.bindings.

The loop has its descriptors prepared and makes five calls for each chunk: create, map, set access, unmap, release.
memtopo makes the same calls through its executor, ledger and driver. The context exists before both.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from memtopo import language, planner
from memtopo.common.errors import Unavailable
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.drivers.target import resolve
from memtopo.executor import Execution
from memtopo.rules import validate

CHUNKS = 8000
SIZE = 2 << 20
ROUNDS = 7
SPEC = f"""
memtopo: 1
name: bench
ranges: {{kv: {{size: {CHUNKS * 2}MiB}}}}
chunks: {{page: {{location: gpu0, size: 2MiB, count: {CHUNKS}}}}}
map: {{kv: [page]}}
access: {{kv: {{gpu0: rw}}}}
"""


def main() -> None:
    """Print both times in µs a chunk, and the median ratio of the pairs."""
    try:
        local = resolve("local")
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    driver = local.open()
    driver.device_primary_ctx_retain(0)
    geometry = validate(language.read_text(SPEC.encode(), "bench"), local.machine).geometry
    assert geometry is not None
    plan = planner.plan(geometry, local.machine)
    prepared = prepare()
    pairs = [(_plain(prepared), _memtopo(plan, driver)) for _ in range(ROUNDS + 1)][1:]
    driver.device_primary_ctx_release(0)
    plain, ours = (statistics.median(times) * 1e6 / CHUNKS for times in zip(*pairs, strict=True))
    ratio = statistics.median(mine / loop for loop, mine in pairs)
    print(f"{local.machine.devices[0].name}, {CHUNKS:,} chunks of 2 MiB, build and teardown, {ROUNDS} rounds")
    print(f"plain loop over cuda.bindings  {plain:6.1f} µs a chunk")
    print(f"memtopo                        {ours:6.1f} µs a chunk")
    print(f"ratio, median of the pairs     {ratio:6.3f}   (at most 1.10)")


def _memtopo(plan: planner.Plan, driver: KernelDriver) -> float:
    ledger = Ledger(driver)
    execution = Execution(plan, ledger)
    start = time.perf_counter()
    execution.build()
    teardown = execution.take_down()
    took = time.perf_counter() - start
    assert ledger.empty
    assert not teardown.leaks
    return took


def prepare() -> tuple[Any, Any, Any]:
    """Return cuda.bindings.driver, and the properties and access of plain memory of GPU 0."""
    from cuda.bindings import driver as cuda

    properties = cuda.CUmemAllocationProp()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    access = cuda.CUmemAccessDesc()
    access.location = properties.location
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return cuda, properties, access


def _plain(prepared: tuple[Any, Any, Any]) -> float:
    cuda, properties, access = prepared
    start = time.perf_counter()
    error, base = cuda.cuMemAddressReserve(CHUNKS * SIZE, 0, 0, 0)
    assert not error
    address = int(base)
    handles = []
    for index in range(CHUNKS):
        error, handle = cuda.cuMemCreate(SIZE, properties, 0)
        assert not error
        handles.append(handle)
        (error,) = cuda.cuMemMap(address + index * SIZE, SIZE, 0, handle, 0)
        assert not error
        (error,) = cuda.cuMemSetAccess(address + index * SIZE, SIZE, [access], 1)
        assert not error
    for index in range(CHUNKS):
        (error,) = cuda.cuMemUnmap(address + index * SIZE, SIZE)
        assert not error
        (error,) = cuda.cuMemRelease(handles[index])
        assert not error
    (error,) = cuda.cuMemAddressFree(address, CHUNKS * SIZE)
    assert not error
    return time.perf_counter() - start
