"""The calls of a layout in a plain program over cuda.bindings: `python bench/bare_apply.py GPUS CHUNKS`.

On each GPU: a context, one range, CHUNKS chunks of 2 MiB, their mappings, and access for all of the GPUs; then each
context is waited for, and all of it is taken down.
"""

from __future__ import annotations

import sys
from typing import Any

from cuda.bindings import driver as cuda

SIZE = 2 << 20
LONGEST = 1000
"""Mappings of one grant, as memtopo makes them."""


def main(gpus: int, chunks: int) -> None:
    """Build the layout and take it down."""
    done(cuda.cuInit(0))
    contexts = [done(cuda.cuDevicePrimaryCtxRetain(gpu)) for gpu in range(gpus)]
    bases = [int(done(cuda.cuMemAddressReserve(chunks * SIZE, 0, 0, 0))) for _ in range(gpus)]
    prepared = [properties(gpu) for gpu in range(gpus)]
    handles = [[done(cuda.cuMemCreate(SIZE, each, 0)) for _ in range(chunks)] for each in prepared]
    for base, created in zip(bases, handles, strict=True):
        for index, handle in enumerate(created):
            done(cuda.cuMemMap(base + index * SIZE, SIZE, 0, handle, 0))
    grants = [access(gpu) for gpu in range(gpus)]
    for base in bases:
        for first in range(0, chunks, LONGEST):
            size = min(LONGEST, chunks - first) * SIZE
            done(cuda.cuMemSetAccess(base + first * SIZE, size, grants, gpus))
    wait(contexts)
    wait(contexts)
    for base in bases:
        for index in range(chunks):
            done(cuda.cuMemUnmap(base + index * SIZE, SIZE))
    for handle in (each for created in handles for each in created):
        done(cuda.cuMemRelease(handle))
    for base in bases:
        done(cuda.cuMemAddressFree(base, chunks * SIZE))
    for gpu in range(gpus):
        done(cuda.cuDevicePrimaryCtxRelease(gpu))


def wait(contexts: list[Any]) -> None:
    """Wait for the work of each context."""
    for context in contexts:
        done(cuda.cuCtxPushCurrent(context))
        done(cuda.cuCtxSynchronize())
        done(cuda.cuCtxPopCurrent())


def properties(gpu: int) -> Any:
    """Properties of plain memory of a GPU."""
    found = cuda.CUmemAllocationProp()
    found.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    found.location.id = gpu
    return found


def access(gpu: int) -> Any:
    """Read and write access of a GPU."""
    found = cuda.CUmemAccessDesc()
    found.location = properties(gpu).location
    found.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return found


def done(answer: tuple[Any, ...]) -> Any:
    """Result of a call, which has to succeed."""
    if answer[0]:
        raise SystemExit(f"{answer[0].name}")
    return answer[1] if len(answer) > 1 else None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
