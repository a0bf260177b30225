"""Calls that the simulator composes from others, with what they answer, so that a GPU's answers can be compared.

Run as a program, it prints the answers of the driver that there is as JSON; with the name of a machine, those of the
simulator.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from cuda.bindings import driver

from memtopo.testing import simulated
from tests.helpers.client_calls import SIZE, access, made, properties

Answer = tuple[str, str, Any]

_ATTRIBUTES = driver.CUpointer_attribute
_POINTER = {
    "memory type": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    "device pointer": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    "host pointer": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_HOST_POINTER,
    "is managed": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_IS_MANAGED,
    "ordinal": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    "start": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    "size": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    "mapped": _ATTRIBUTES.CU_POINTER_ATTRIBUTE_MAPPED,
}


def answered(name: str, answer: tuple[Any, ...], shown: Callable[[Any], Any] = lambda _: None) -> Answer:
    """Name of a case, of the error, and a result as it is to be compared."""
    error, *results = answer
    return name, error.name, None if error or not results else shown(results[0])


def before_init() -> Iterator[Answer]:
    yield answered("version before init", driver.cuDriverGetVersion())
    yield answered("count before init", driver.cuDeviceGetCount())
    yield answered("current context before init", driver.cuCtxGetCurrent())
    yield answered("init with flags", driver.cuInit(1))
    yield answered("init", driver.cuInit(0))


def of_contexts() -> Iterator[Answer]:
    yield answered("no context", driver.cuCtxGetCurrent(), int)
    yield answered("device without a context", driver.cuCtxGetDevice())
    yield answered("flags without a context", driver.cuCtxGetFlags())
    yield answered("priorities without a context", driver.cuCtxGetStreamPriorityRange())
    yield answered("synchronize without a context", driver.cuCtxSynchronize())
    yield answered("unset", driver.cuCtxSetCurrent(0))
    yield answered("pop without a context", driver.cuCtxPopCurrent())
    yield answered("a gpu that is not there", driver.cuDeviceGet(99))
    yield answered("a negative gpu", driver.cuDeviceGet(-1))
    yield answered("retain of a gpu that is not there", driver.cuDevicePrimaryCtxRetain(99))
    yield answered("no such bus id", driver.cuDeviceGetByPCIBusId(b"00ff:00:00.0"))
    own = made(driver.cuDeviceGetPCIBusId(32, 0)).split(b"\0")[0]
    yield answered("own bus id", driver.cuDeviceGetByPCIBusId(own), int)
    yield answered("a short name", driver.cuDeviceGetName(4, 0), lambda text: bytes(text)[:4].decode())
    context = made(driver.cuDevicePrimaryCtxRetain(0))
    yield answered("set", driver.cuCtxSetCurrent(context))
    yield answered("current", driver.cuCtxGetCurrent(), lambda found: int(found) == int(context))
    yield answered("device", driver.cuCtxGetDevice(), int)
    yield answered("api version", driver.cuCtxGetApiVersion(context), int)
    yield answered("priorities", driver.cuCtxGetStreamPriorityRange(), int)
    made(driver.cuCtxPushCurrent(context))
    made(driver.cuCtxSetCurrent(0))
    yield answered("below a popped one", driver.cuCtxGetCurrent(), lambda found: int(found) == int(context))
    made(driver.cuCtxSetCurrent(0))
    yield answered("below it", driver.cuCtxGetCurrent(), int)
    made(driver.cuCtxSetCurrent(context))


def of_fills(address: int) -> Iterator[Answer]:
    yield answered("halves that are not aligned", driver.cuMemsetD16(address + 1, 1, 1))
    yield answered("words that are not aligned", driver.cuMemsetD32(address + 2, 1, 1))
    yield answered("no words", driver.cuMemsetD32(address, 1, 0))
    yield answered("words", driver.cuMemsetD32(address, 0x01020304, 2))
    yield answered("past the end", driver.cuMemsetD32(address + SIZE - 4, 1, 2))
    found = bytearray(8)
    yield answered("to a program", driver.cuMemcpyDtoH(found, address, 8))
    yield "filled", found.hex(), None
    pageable = ctypes.create_string_buffer(b"pageable", 8)
    yield answered("from a program", driver.cuMemcpyAsync(address, ctypes.addressof(pageable), 8, 0))
    yield answered("back to a program", driver.cuMemcpy(ctypes.addressof(pageable) + 4, address, 4))
    yield "copied", bytes(pageable).hex(), None
    yield answered("of nothing", driver.cuMemcpy(address, address + 8, 0))
    yield answered("past the end of memory", driver.cuMemcpyDtoD(address, address + SIZE - 4, 8))
    yield answered("to a program past the end", driver.cuMemcpyDtoH(bytearray(8), address + SIZE - 4, 8))


def of_pointers(places: dict[str, tuple[int, int]]) -> Iterator[Answer]:
    for place, (start, size) in places.items():
        for name, attribute in _POINTER.items():
            found = driver.cuPointerGetAttribute(attribute, start + 16)

            def shown(value: Any, name: str = name, start: int = start, size: int = size) -> Any:
                if name in ("device pointer", "host pointer", "start"):
                    return int(value) - start
                return int(value) if name != "size" else int(value) >= size

            yield answered(f"{name} of {place}", found, shown)


def of_pools_and_streams() -> Iterator[Answer]:
    pool = made(driver.cuDeviceGetDefaultMemPool(0))
    yield answered("own pool", driver.cuDeviceGetMemPool(0), lambda found: int(found) == int(pool))
    yield answered("end of the own pool", driver.cuMemPoolDestroy(pool))
    yield answered("pool of no gpu", driver.cuDeviceGetDefaultMemPool(99))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    yield answered("threshold", driver.cuMemPoolGetAttribute(pool, threshold), int)
    yield answered("nothing", driver.cuMemAllocAsync(0, 0), int)
    address = made(driver.cuMemAllocAsync(1000, 0))
    yield answered("free", driver.cuMemFreeAsync(address, 0))
    made(driver.cuStreamSynchronize(0))
    for flags in (0, 1, 2):
        status, stream = driver.cuStreamCreate(flags)
        yield f"stream with flags {flags}", status.name, None
        if not status:
            yield answered(f"flags {flags}", driver.cuStreamGetFlags(stream), int)
            made(driver.cuStreamDestroy(stream))
    for priority in (-9, -1, 3):
        stream = made(driver.cuStreamCreateWithPriority(1, priority))
        yield answered(f"priority {priority}", driver.cuStreamGetPriority(stream), int)
        made(driver.cuStreamDestroy(stream))
    yield answered("query of stream 0", driver.cuStreamQuery(0))
    event = made(driver.cuEventCreate(2))
    yield answered("query of an event", driver.cuEventQuery(event))
    made(driver.cuEventDestroy(event))
    yield answered("host pointer with flags", driver.cuMemHostGetDevicePointer(4096, 1))
    yield answered("no page-locked memory", driver.cuMemAllocHost(0), int)


def answers() -> Iterator[Answer]:
    """Answers of all cases, in order."""
    yield from before_init()
    yield from of_contexts()
    handle = made(driver.cuMemCreate(SIZE, properties(), 0))
    address = int(made(driver.cuMemAddressReserve(2 * SIZE, 0, 0, 0)))
    made(driver.cuMemMap(address, SIZE, 0, handle, 0))
    made(driver.cuMemSetAccess(address, SIZE, [access()], 1))
    yield from of_fills(address)
    places = {
        "a mapping": (address, SIZE),
        "a hole": (address + SIZE, SIZE),
        "an allocation": (int(made(driver.cuMemAlloc(SIZE))), SIZE),
        "page-locked memory": (int(made(driver.cuMemHostAlloc(SIZE, 0))), SIZE),
        "managed memory": (int(made(driver.cuMemAllocManaged(SIZE, 1))), SIZE),
        "a pool": (int(made(driver.cuMemAllocAsync(SIZE, 0))), SIZE),
        "a program": (ctypes.addressof(ctypes.create_string_buffer(64)), 0),
    }
    yield from of_pointers(places)
    yield from of_pools_and_streams()


def main(machine: str = "") -> None:
    """Print the answers."""
    with simulated(machine) if machine else nullcontext():
        sys.stdout.write(json.dumps(list(answers())))


if __name__ == "__main__":
    main(*sys.argv[1:])
