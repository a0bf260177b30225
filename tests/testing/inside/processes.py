"""Processes of one simulated machine: those that a test spawns share its GPUs."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import Any

import pytest
from cuda.bindings import driver

from memtopo.testing import Simulation
from tests.helpers.client_calls import FD, SIZE, access, made, mapped, properties, unmap, use

SPAWN = multiprocessing.get_context("spawn")


class Child:
    """A process that runs a function with a connection, and answers once it is told to go on."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self.connection, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=function, args=(theirs, *arguments))
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        assert self.connection.poll(60), "the process does not answer"
        return self.connection.recv()

    def end(self) -> int | None:
        self.connection.send("end")
        self.process.join(60)
        return self.process.exitcode


def take(connection: Connection, size: int) -> None:
    use()
    status, _ = driver.cuMemCreate(size, properties(), 0)
    connection.send((int(status), os.getpid()))
    connection.recv()


def test_memory_is_shared_and_comes_back_at_the_end_of_a_process(simulated_gpus: Simulation) -> None:
    use()
    free = simulated_gpus.free()
    most = free // SIZE * SIZE - (1 << 30)
    first = Child(take, most)
    assert first.answer()[0] == 0
    second = Child(take, most)
    assert second.answer()[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert driver.cuMemCreate(most, properties(), 0)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert [leak.size for leak in simulated_gpus.leaks] == [None]
    assert simulated_gpus.leaks[0].pid == first.process.pid
    assert second.end() == first.end() == 0
    assert simulated_gpus.free() == free


def test_a_killed_process_leaves_nothing(simulated_gpus: Simulation) -> None:
    use()
    free = simulated_gpus.free()
    child = Child(take, 1 << 30)
    _, pid = child.answer()
    assert free - simulated_gpus.free() >= 1 << 30
    os.kill(pid, signal.SIGKILL)
    child.process.join(60)
    assert simulated_gpus.free() == free
    assert not simulated_gpus.leaks


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


def test_memory_is_exported_to_a_process(simulated_gpus: Simulation) -> None:
    use()
    address, handle = mapped()
    allocation = made(driver.cuMemAlloc(SIZE))
    made(driver.cuMemcpyHtoD(address, b"chunk", 5))
    made(driver.cuMemcpyHtoD(allocation, b"ipc", 3))
    fd = made(driver.cuMemExportToShareableHandle(handle, FD, 0))
    secret = ctypes.string_at(made(driver.cuIpcGetMemHandle(allocation)).getPtr(), 64)
    child = Child(read_shared, DupFd(fd), secret)
    assert child.answer() == (b"chunk", b"ipc")
    assert simulated_gpus.read(address, 5) == b"reply"
    assert child.end() == 0
    os.close(fd)
    unmap(address, handle)
    made(driver.cuMemFree(allocation))


def test_a_process_that_is_forked_has_no_driver(simulated_gpus: Simulation) -> None:
    use()
    pid = os.fork()
    if not pid:
        os._exit(int(driver.cuInit(0)[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
    assert simulated_gpus.free()


@pytest.mark.simulated_gpus(leaks="allow")
def test_leaks_are_allowed_where_the_marker_says_so(simulated_gpus: Simulation) -> None:
    use()
    mapped()
    assert len(simulated_gpus.leaks) == 3
