"""Processes of one simulated machine: those that a test spawns share its GPUs."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.reduction import DupFd
from typing import Any

import pytest
from cuda.bindings import driver

from memtopo.testing import Simulation, simulated
from tests.helpers.client_calls import FD, SIZE, made, mapped, properties, unmap, use
from tests.helpers.spawned import (
    fork_before_init,
    leave_a_child,
    open_event,
    read_shared,
    share_allocation,
    take,
    use_threads,
)

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


@pytest.mark.parametrize(
    ("ending", "name"), [("live", "SUCCESS"), ("free", "ERROR_INVALID_VALUE"), ("end", "ERROR_INVALID_HANDLE")]
)
@pytest.mark.simulated_gpus(leaks="allow")
def test_memory_of_a_process_is_opened_while_the_process_has_it(
    simulated_gpus: Simulation, ending: str, name: str
) -> None:
    use()
    child = Child(share_allocation)
    ipc = driver.CUipcMemHandle()
    ctypes.memmove(ipc.getPtr(), child.answer(), 64)
    if ending == "free":
        child.connection.send(ending)
        child.answer()
    if ending == "end":
        child.end()
    assert driver.cuIpcOpenMemHandle(ipc, 1)[0].name == f"CUDA_{name}"
    if ending != "end":
        child.end()


def test_a_process_that_is_forked_has_no_driver(simulated_gpus: Simulation) -> None:
    use()
    pid = os.fork()
    if not pid:
        os._exit(int(driver.cuInit(0)[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED
    assert simulated_gpus.free()


def test_a_forked_process_that_leaves_a_simulation_does_not_end_that_of_its_parent() -> None:
    with ExitStack() as stack:
        simulation = stack.enter_context(simulated())
        use()
        forked = multiprocessing.get_context("fork").Process(target=stack.close)
        forked.start()
        forked.join(60)
        assert forked.exitcode == 0
        child = Child(take, SIZE)
        assert child.answer()[0] == 0
        assert [leak.pid for leak in simulation.leaks] == [child.process.pid]
        assert child.end() == 0


@pytest.mark.simulated_gpus(leaks="allow")
def test_leaks_are_allowed_where_the_marker_says_so(simulated_gpus: Simulation) -> None:
    use()
    mapped()
    assert len(simulated_gpus.leaks) == 3


def test_an_event_is_opened_by_another_program_and_not_by_its_own(simulated_gpus: Simulation) -> None:
    use()
    flags = driver.CUevent_flags
    event = made(driver.cuEventCreate(flags.CU_EVENT_DISABLE_TIMING | flags.CU_EVENT_INTERPROCESS))
    handle = made(driver.cuIpcGetEventHandle(event))
    assert driver.cuIpcOpenEventHandle(handle)[0] == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    child = Child(open_event, ctypes.string_at(handle.getPtr(), 64))
    assert child.answer() == 0
    assert child.end() == 0
    made(driver.cuEventDestroy(event))


def test_a_program_goes_on_after_its_first_thread_and_threads_leave_no_descriptors(simulated_gpus: Simulation) -> None:
    child = Child(use_threads)
    more, is_inherited = child.answer()
    assert more <= 3  # with the exported one, and those of a thread that is about to end
    assert not is_inherited
    assert child.end() == 0


def test_a_process_that_is_forked_before_init_has_a_driver(simulated_gpus: Simulation) -> None:
    child = Child(fork_before_init)
    assert child.answer() == 0
    assert child.end() == 0


def test_a_child_that_goes_on_keeps_nothing_of_a_process_that_has_ended(simulated_gpus: Simulation) -> None:
    made(driver.cuInit(0))
    free = simulated_gpus.free()
    child = Child(leave_a_child)
    pid = child.answer()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # a join would wait for the child of it, too
    assert simulated_gpus.free() == free
    child.connection.close()
