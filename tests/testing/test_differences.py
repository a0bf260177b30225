"""Rows of "For programs" in docs/simulator.md, with calls that a program makes."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.specs import ROOT

PAGE = 4096
GRANULE = 2 << 20


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """What the program below found, in a process of its own: the driver's library stays loaded."""
    program = [sys.executable, "-c", f"from {__name__} import print_observations; print_observations()"]
    done = subprocess.run(program, check=True, capture_output=True, text=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def print_observations() -> None:
    from memtopo.testing import simulated

    with simulated("h200x2"):
        sys.stdout.write(json.dumps(dict(observed())))


def observed() -> Iterator[tuple[str, Any]]:
    from cuda.bindings import driver as cuda

    def made(answer: tuple[Any, ...]) -> Any:
        status, *results = answer
        return status.name.removeprefix("CUDA_ERROR_") if status else int(results[0]) if results else "ok"

    yield "version", made(cuda.cuDriverGetVersion())
    cuda.cuInit(0)
    create = ctypes.CDLL("libcuda.so.1").cuCtxCreate_v2
    contexts = [ctypes.c_uint64() for _ in range(2)]
    yield "created", [create(ctypes.byref(each), 8, 0) for each in contexts]
    yield "contexts", [*(each.value for each in contexts), made(cuda.cuDevicePrimaryCtxRetain(0))]
    yield "flags", made(cuda.cuCtxGetFlags())
    yield "api", made(cuda.cuCtxGetApiVersion(contexts[0].value))
    yield "text", cuda.cuGetErrorString(cuda.CUresult.CUDA_ERROR_INVALID_VALUE)[1].decode()
    yield "kernel", bool(cuda.cuGetProcAddress(b"cuLaunchKernel", 13000, 0)[1])
    yield "runtime", cuda.cuGetExportTable(cuda.CUuuid())[0].name
    yield "direct", ctypes.CDLL("libcuda.so.1").cuLaunchKernel(*[0] * 8)
    threads = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    yield "attribute", made(cuda.cuDeviceGetAttribute(threads, 0))
    arrays = cuda.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED
    yield "link", made(cuda.cuDeviceGetP2PAttribute(arrays, 0, 1))
    pinned, managed = cuda.cuMemHostAlloc(100, 0)[1], cuda.cuMemAllocManaged(100, 1)[1]
    yield "sizes", [cuda.cuMemGetAddressRange(each)[2] for each in (pinned, managed)]
    yield "mapped", [mapped(each) for each in (int(pinned), int(managed), host_chunk(cuda))]
    yield "pool", made(cuda.cuDeviceSetMemPool(0, cuda.cuDeviceGetDefaultMemPool(1)[1]))
    stream = cuda.cuStreamCreate(0)[1]
    yield "stream", made(cuda.cuStreamQuery(stream))
    yield "named streams", [made(cuda.cuStreamQuery(cuda.CUstream(each))) for each in (1, 2)]
    yield "capture", int(cuda.cuStreamIsCapturing(stream)[1])
    minimum = cuda.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_MINIMUM
    yield "team", made(cuda.cuMulticastGetGranularity(cuda.CUmulticastObjectProp(), minimum))


def host_chunk(cuda: Any) -> int:
    """Address of a mapped chunk of the host's memory that the host may use."""
    properties, grant = cuda.CUmemAllocationProp(), cuda.CUmemAccessDesc()
    properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
    grant.location, grant.flags = properties.location, cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address, chunk = cuda.cuMemAddressReserve(GRANULE, 0, 0, 0)[1], cuda.cuMemCreate(GRANULE, properties, 0)[1]
    cuda.cuMemMap(address, GRANULE, 0, chunk, 0)
    assert not cuda.cuMemSetAccess(address, GRANULE, [grant], 1)[0]
    return int(address)


def mapped(address: int) -> bool:
    return any(line.startswith(f"{address:x}-") for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("version", 13000),
        ("created", [0, 0]),
        ("flags", 8),
        ("api", 3020),
        ("text", "invalid argument"),
        ("kernel", False),
        ("runtime", "CUDA_ERROR_NOT_SUPPORTED"),
        ("direct", 801),
        ("attribute", 1024),
        ("link", "INVALID_VALUE"),
        ("sizes", [PAGE, PAGE]),
        ("mapped", [True, True, True]),
        ("pool", "ok"),
        ("stream", "ok"),
        ("named streams", ["ok", "ok"]),
        ("capture", 0),
        ("team", "NOT_SUPPORTED"),
    ],
)
def test_programs_find_the_differences_that_are_documented(seen: dict[str, Any], what: str, expected: Any) -> None:
    assert seen[what] == expected


def test_contexts_of_a_gpu_are_several(seen: dict[str, Any]) -> None:
    assert len(set(seen["contexts"])) == 3
