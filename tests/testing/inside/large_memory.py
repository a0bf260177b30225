"""Copies and fills of gigabytes, of which memory and time take only what is touched."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cuda.bindings import driver

from memtopo.common.errors import UsageError
from memtopo.testing import Simulation, simulated
from tests.helpers.client_calls import made
from tests.helpers.command_line import environment
from tests.helpers.specs import ROOT

M, GIB = 1 << 20, 1 << 30
LARGE = 16 * GIB


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with simulated("h200x2") as found:
        made(driver.cuInit(0))
        made(driver.cuCtxSetCurrent(made(driver.cuDevicePrimaryCtxRetain(0))))
        yield found
        made(driver.cuDevicePrimaryCtxRelease(0))


def taken() -> int:
    """Bytes of this process's files in memory."""
    blocks = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            blocks += each.stat().st_blocks if "memfd:memtopo" in str(each.readlink()) else 0
    return 512 * blocks


@pytest.mark.usefixtures("simulation")
def test_zeros_and_copies_of_untouched_memory_take_none() -> None:
    one, other = (made(driver.cuMemAlloc(LARGE)) for _ in range(2))
    before, peak = taken(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made(driver.cuMemsetD32(one, 0, LARGE // 4))
    made(driver.cuMemsetD8(int(one) + LARGE - M, 7, M))
    made(driver.cuMemcpyDtoD(other, one, LARGE))
    made(driver.cuMemsetD32(one, 0x01020304, 16 * M))
    assert taken() - before == 2 * M + 64 * M
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 32 * M >> 10
    data = ctypes.create_string_buffer(4)
    made(driver.cuMemcpyDtoH(data, int(other) + LARGE - 4, 4))
    assert data.raw == b"\7\7\7\7"
    made(driver.cuMemcpyDtoH(data, int(one) + 64 * M - 4, 4))
    assert data.raw == b"\4\3\2\1"


@pytest.mark.usefixtures("simulation")
def test_after_a_refused_allocation_of_any_kind_others_succeed() -> None:
    stream = made(driver.cuStreamCreate(1))
    for _ in range(8):
        for refused in (
            driver.cuMemAllocAsync(1 << 62, stream), driver.cuMemAlloc(1 << 62), driver.cuMemHostAlloc(1 << 62, 0),
            driver.cuMemAllocManaged(1 << 62, 1),
        ):  # fmt: skip
            assert refused[0].name == "CUDA_ERROR_OUT_OF_MEMORY"
    for _ in range(2):
        made(driver.cuMemAllocAsync(M, stream))
        made(driver.cuMemAlloc(M))
    made(driver.cuStreamDestroy(stream))


def test_of_several_threads_one_enters_a_simulation() -> None:
    """The environment is as before when it has left."""
    before, barrier, outcomes = dict(os.environ), threading.Barrier(8), list[str]()
    ended = threading.Event()

    def enter() -> None:
        barrier.wait()
        try:
            with simulated("h200x2"):
                outcomes.append("entered")
                ended.wait(30)
        except UsageError as error:
            outcomes.append(error.message)
            if len([each for each in outcomes if each != "entered"]) == 7:
                ended.set()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(outcomes) == ["a simulation runs in this process already"] * 7 + ["entered"]
    assert dict(os.environ) == before


def test_a_limit_on_the_size_of_files_is_named() -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, GIB))  # noqa: E731
    arguments = [sys.executable, "-m", "memtopo", "apply", str(ROOT / "specs/quickstart.yaml"), "--machine", "h200x2"]
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 4, done.stderr
    assert "error: the simulator cannot have a large file in memory: file too large" in done.stderr
    assert "ulimit -f unlimited" in done.stderr
