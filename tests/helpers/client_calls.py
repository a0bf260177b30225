"""Calls of cuda.bindings as clients make them: structures filled in, and results without a status."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

SIZE = 2 << 20
GPU = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


def made(answer: tuple[Any, ...]) -> Any:
    """Result of a call that has to succeed: None, a value, or several."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return None if len(answer) == 1 else answer[1] if len(answer) == 2 else answer[1:]


def properties(device: int = 0, handles: Any = FD) -> driver.CUmemAllocationProp:
    """Properties of a chunk of a GPU."""
    found = driver.CUmemAllocationProp()
    found.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.location.type, found.location.id = GPU, device
    found.requestedHandleTypes = handles
    return found


def access(device: int = 0, flags: int = 3) -> driver.CUmemAccessDesc:
    """Access of a GPU: 1 to read, 3 to read and write."""
    found = driver.CUmemAccessDesc()
    found.location.type, found.location.id = GPU, device
    found.flags = driver.CUmemAccess_flags(flags)
    return found


def use(device: int = 0) -> int:
    """Initialise the driver, and make the primary context of a GPU current."""
    made(driver.cuInit(0))
    context = made(driver.cuDevicePrimaryCtxRetain(device))
    made(driver.cuCtxSetCurrent(context))
    return int(context)


def mapped(size: int = SIZE, device: int = 0) -> tuple[int, int]:
    """Address and handle of a new chunk that its GPU may read and write."""
    handle = made(driver.cuMemCreate(size, properties(device), 0))
    address = made(driver.cuMemAddressReserve(size, 0, 0, 0))
    made(driver.cuMemMap(address, size, 0, handle, 0))
    made(driver.cuMemSetAccess(address, size, [access(device)], 1))
    return int(address), int(handle)


def unmap(address: int, handle: int, size: int = SIZE) -> None:
    """End what `mapped` has made."""
    made(driver.cuMemUnmap(address, size))
    made(driver.cuMemAddressFree(address, size))
    made(driver.cuMemRelease(handle))
