"""Pinned memory on real GPUs: allocated, of files that other processes share, and as the keeper of offloaded bytes."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.common.units import MiB
from memtopo.driver.protocol import Driver
from memtopo.drivers.target import Target
from tests.helpers.specs import ROOT
from tests.run.pinned_rounds_program import SIZE, WORD, rounds_elsewhere, spec

pytestmark = pytest.mark.gpu
ROUNDS = 200


@contextmanager
def shared_file(size: int) -> Iterator[int]:
    fd = os.memfd_create("memtopo-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        yield fd
    finally:
        os.close(fd)


def path_of(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


def applied(tmp_path: Path, text: str, *options: str) -> dict[str, object]:
    """Report of `memtopo apply` in a process of its own."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"memtopo: 1\nname: pinned\n{text}")
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_all_pinned_memory_is_as_declared_in_every_state(local: Target, tmp_path: Path) -> None:
    """Every byte of what is allocated, and the ends of the file, which stays as it was."""
    gpus = [f"gpu{ordinal}" for ordinal in range(len(local.machine.devices))]
    with shared_file(64 * MiB) as file:
        os.pwrite(file, bytes(range(256)) * 4096, 0)
        before = os.pread(file, 8 * MiB, 0)
        text = f"""
ranges: {{kv: {{size: 64MiB}}}}
chunks: {{w: {{location: gpu0, size: 32MiB}}, x: {{location: {gpus[-1]}, size: 16MiB, count: 2}}}}
map: {{kv: [w, x]}}
access: {{kv: {{{", ".join(f"{gpu}: rw" for gpu in gpus)}}}}}
pinned:
  p: {{size: 5000B, count: 3, accessed_by: {gpus}}}
  combined: {{size: 4MiB, write_combined: true}}
  staging: {{size: 48MiB}}
  f: {{file: {path_of(file)}, size: 1MiB, count: 4, accessed_by: {gpus}}}
  r: {{file: {path_of(file)}, size: 4MiB, offset: 4096B, read_only: true, accessed_by: {gpus}}}
  far: {{file: {path_of(file)}, size: 32MiB, offset: 32MiB}}
states: {{asleep: {{offload: {{w: staging, x.0: staging}}, drop: x.1}}, half: {{offload: {{w: far}}}}}}
"""
        applied(tmp_path, text.replace("'", ""), "--check", "full", "--rehearse")
        assert os.pread(file, 8 * MiB, 0) == before
        assert os.pread(file, MiB, 32 * MiB) != bytes(MiB)


def test_the_cpu_and_a_gpu_share_views(local: Target) -> None:
    """NumPy writes what a tensor of the GPU reads, and the other way round, also in the file."""
    torch = pytest.importorskip("torch")
    del local
    with shared_file(2 * MiB) as file:
        spec = {
            "memtopo": 1,
            "name": "views",
            "pinned": {"p": {"size": "2MiB"}, "f": {"file": path_of(file), "size": "1MiB", "count": 2}},
        }
        with memtopo.applied(spec, machine="local") as layout:
            for name in ("p", "f.1"):
                host = np.from_dlpack(layout.pinned(name, dtype="int32"))
                device = torch.from_dlpack(layout.pinned(name, dtype="int32", device="gpu0"))
                host[:] = 7
                device += 1
                torch.cuda.synchronize()
                assert (host == 8).all()
                assert device.data_ptr() == host.ctypes.data == layout.address(name)
                host[:] = 3
                assert int(device.sum()) == 3 * len(host)
                del host, device
                gc.collect()
        assert os.pread(file, 4, MiB) == (3).to_bytes(4, "little")
    assert layout.report
    assert layout.report.outcome == "ok"


def test_sharing_a_file_again_and_again_leaves_nothing(local: Target, tmp_path: Path) -> None:
    """A producer sends a memfd to 200 layouts, one after the other.

    Descriptors are counted without it, since it closes connections in a thread of its own.
    """
    del local
    with shared_file(4 * MiB) as file:
        exports = {"ring": memtopo.HostMemory(file, 4 * MiB)}
        counts = []
        for rounds in (1, ROUNDS):
            with memtopo.serve(f"{tmp_path}/engine{rounds}.sock", exports) as served:
                share(served.path, file, rounds)
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[0] == counts[1]
        assert "memtopo-test" not in Path("/proc/self/maps").read_text()


def test_a_registered_memfd_is_shared_with_another_process_again_and_again(local: Target) -> None:
    """Nothing is left in either process, nor of the GPU's memory, and both find each other's bytes."""
    driver = local.open()
    with shared_file(SIZE) as file, memtopo.applied(spec(path_of(file)), machine="local") as layout:
        address, ends = layout.address("ring"), []
        ctypes.memmove(address + WORD, b"by other", WORD)
        for rounds in (1, ROUNDS):
            before, after = rounds_elsewhere("local", path_of(file), rounds)
            assert before == after
            assert int.from_bytes(ctypes.string_at(address, WORD), "little") == rounds - 1
            ends.append((len(os.listdir("/proc/self/fd")), free(driver)))
        assert ends[0] == ends[1]
    assert layout.report
    assert layout.report.outcome == "ok"


def free(driver: Driver) -> int:
    """Free bytes of the first GPU, where the layout has a context."""
    context = driver.device_primary_ctx_retain(0)
    driver.ctx_push_current(context)
    try:
        return driver.mem_get_info()[0]
    finally:
        driver.ctx_pop_current()
        driver.device_primary_ctx_release(0)


def share(engine: str, file: int, rounds: int) -> None:
    """Apply layouts that write the file of a producer."""
    spec = {"memtopo": 1, "name": "reader", "pinned": {"ring": {"from": "engine", "size": "4MiB"}}}
    for number in range(rounds):
        with memtopo.applied(spec, machine="local", bind={"engine": engine}) as layout:
            ctypes.memmove(layout.address("ring"), number.to_bytes(4, "little"), 4)
        assert layout.report
        assert layout.report.outcome == "ok"
        assert os.pread(file, 4, 0) == number.to_bytes(4, "little")
