"""Use of GPU memory by a process on a real GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memtopo.common.processes import in_pid_namespace
from memtopo.drivers.cuda.nvml import gpu_usage
from memtopo.usage import usage
from tests.helpers.command_line import ROOT, environment

pytestmark = pytest.mark.gpu

SIZE = 64 << 20
PROGRAM = """
import sys
from memtopo.drivers.cuda import open_cuda
from memtopo.driver.types import Properties, gpu
driver = open_cuda()
if sys.argv[2] == "context":
    driver.device_primary_ctx_retain(0)
driver.mem_create(int(sys.argv[1]), Properties(gpu(0)))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("context", ["context", "no context"])
def test_a_process_with_64_mib_is_listed_with_at_least_these_bytes(context: str) -> None:
    """By its open device files in any case; NVML lists processes with a context, in a container possibly none."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(SIZE), context],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True,
    )  # fmt: skip
    with child:
        assert child.stdout
        assert child.stdin
        assert child.stdout.readline() == "ready\n"
        found = usage(gpu_usage(), [])
        child.stdin.close()
    (entry,) = [each for each in found.processes if each.pid == child.pid and each.devices]
    assert "/dev/nvidiactl" in {device.file for device in entry.devices or ()}
    assert any(gpu.used for gpu in found.gpus), found
    if in_pid_namespace() and not entry.memory:
        assert any("container" in each for each in found.unknown)
    elif context == "context" or entry.memory:
        assert sum(each.bytes or 0 for each in entry.memory) >= SIZE, found
