"""Processes of a simulated machine that see some of its GPUs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cuda.bindings import driver

from memtopo.testing import simulated
from tests.helpers.client_calls import FD, SIZE, made, properties, use
from tests.helpers.spawned import seen
from tests.helpers.specs import ROOT

CHILD = [sys.executable, "-c", "from tests.helpers.spawned import print_seen; print_seen()"]
ANSWERS = {
    "0": "gpus [0], imported from 0, on a second gpu: CUDA_ERROR_INVALID_DEVICE",
    "1": "gpus [1], imported from -2, on a second gpu: CUDA_ERROR_INVALID_DEVICE",
    "1,0": "gpus [1, 0], imported from 1, on a second gpu: CUDA_SUCCESS",
    "": "CUDA_ERROR_NO_DEVICE, then CUDA_ERROR_NOT_INITIALIZED",
    "0,0": "CUDA_ERROR_INVALID_DEVICE, then CUDA_ERROR_NOT_INITIALIZED",
}


def test_other_processes_have_ordinals_of_their_own() -> None:
    with simulated("h200x2"):
        use()
        fd = int(made(driver.cuMemExportToShareableHandle(made(driver.cuMemCreate(SIZE, properties(), 0)), FD, 0)))
        for visible, answer in ANSWERS.items():
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "EXPORTED": str(fd)}
            done = subprocess.run(CHILD, env=env, pass_fds=[fd], check=True, capture_output=True, text=True, cwd=ROOT)
            assert done.stdout == answer
        os.close(fd)


@pytest.mark.parametrize("visible", ["1", "1,0", "", "0"])
def test_this_process_sees_what_its_environment_lists_when_a_simulation_begins(
    monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with simulated("h200x2") as gpus:
        if not visible:
            assert seen(-1) == ANSWERS[visible]
            return
        use()
        handle = made(driver.cuMemCreate(1 << 30, properties(), 0))
        taken = [gpu.memory_bytes - gpus.free(at) >> 30 for at, gpu in enumerate(gpus.machine.devices)]
        assert taken == ([0, 1] if visible.startswith("1") else [1, 0])
        total = made(driver.cuMemGetInfo())
        assert total[1] - total[0] >> 30 == 1
        fd = int(made(driver.cuMemExportToShareableHandle(handle, FD, 0)))
        count = ANSWERS[visible].partition(",")[0]
        assert seen(fd).startswith(count if visible != "1,0" else "gpus [1, 0]")
        os.close(fd)
