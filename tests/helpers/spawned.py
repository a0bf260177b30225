"""Functions of the processes that tests spawn in a simulation: each imports this module, which imports little."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from cuda.bindings import driver

from tests.helpers.client_calls import FD, SIZE, access, made, properties, use


def take(connection: Connection, size: int) -> None:
    use()
    status, _ = driver.cuMemCreate(size, properties(), 0)
    connection.send((int(status), os.getpid()))
    connection.recv()


def read_shared(connection: Connection, shared: Any, secret: bytes) -> None:
    use(1)
    handle = made(driver.cuMemImportFromShareableHandle(shared.detach(), FD))
    address = made(driver.cuMemAddressReserve(SIZE, 0, 0, 0))
    made(driver.cuMemMap(address, SIZE, 0, handle, 0))
    made(driver.cuMemSetAccess(address, SIZE, [access(1)], 1))
    data = bytearray(5)
    made(driver.cuMemcpyDtoH(data, address, 5))
    ipc = driver.CUipcMemHandle()
    ctypes.memmove(ipc.getPtr(), secret, 64)
    opened = made(driver.cuIpcOpenMemHandle(ipc, 1))
    more = bytearray(3)
    made(driver.cuMemcpyDtoH(more, opened, 3))
    made(driver.cuMemcpyHtoD(address, b"reply", 5))
    connection.send((bytes(data), bytes(more)))
    connection.recv()


def share_allocation(connection: Connection) -> None:
    use()
    address = made(driver.cuMemAlloc(SIZE))
    connection.send(ctypes.string_at(made(driver.cuIpcGetMemHandle(address)).getPtr(), 64))
    if connection.recv() == "free":
        connection.send(made(driver.cuMemFree(address)))
        connection.recv()


def open_event(connection: Connection, secret: bytes) -> None:
    use()
    handle = driver.CUipcEventHandle()
    ctypes.memmove(handle.getPtr(), secret, 64)
    event = made(driver.cuIpcOpenEventHandle(handle))
    made(driver.cuEventRecord(event, 0))
    connection.send(int(driver.cuEventQuery(event)[0]))
    connection.recv()


def use_threads(connection: Connection) -> None:
    with ThreadPoolExecutor(1) as first:
        context = first.submit(use).result()
    made(driver.cuCtxSetCurrent(context))
    made(driver.cuMemCreate(SIZE, properties(), 0))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with ThreadPoolExecutor(1) as other:
            made(other.submit(driver.cuDeviceGetCount).result())
    handle = made(driver.cuMemCreate(SIZE, properties(), 0))
    fd = made(driver.cuMemExportToShareableHandle(handle, FD, 0))
    connection.send((len(os.listdir("/proc/self/fd")) - before, os.get_inheritable(fd)))
    connection.recv()


def fork_before_init(connection: Connection) -> None:
    made(driver.cuDriverGetVersion())
    pid = os.fork()
    if not pid:
        os._exit(int(driver.cuInit(0)[0]))
    connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    connection.recv()


def leave_a_child(connection: Connection) -> None:
    use()
    made(driver.cuMemCreate(SIZE, properties(), 0))
    if not os.fork():
        with suppress(EOFError):
            while connection.recv():
                pass
        os._exit(0)
    connection.send(os.getpid())
    signal.pause()


def seen(descriptor: int) -> str:
    """Visible GPUs, the ordinal of that of an imported chunk, and the result of creating one on the second GPU."""
    status = driver.cuInit(0)[0]
    if status:
        return f"{status.name}, then {driver.cuDeviceGetCount()[0].name}"
    use()
    uuids = [bytes(made(driver.cuDeviceGetUuid(each)).bytes)[-1] for each in range(made(driver.cuDeviceGetCount()))]
    imported = made(driver.cuMemImportFromShareableHandle(descriptor, FD))
    ordinal = made(driver.cuMemGetAllocationPropertiesFromHandle(imported)).location.id
    second = driver.cuMemCreate(SIZE, properties(1), 0)[0].name
    return f"gpus {uuids}, imported from {ordinal}, on a second gpu: {second}"


def print_seen() -> None:
    sys.stdout.write(seen(int(os.environ["EXPORTED"])))
