"""Managed memory that exceeds a real GPU. In a process of its own, since the driver keeps what it touched (fact 60)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.common.units import GiB, MiB
from memtopo.machine.target import Target
from tests.helpers.specs import ROOT, codes

pytestmark = pytest.mark.gpu
CHUNK = "ranges: {r: {size: 1GiB}}\nchunks: {c: {location: gpu0, size: 1GiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}\n"


def test_a_gpu_writes_managed_memory_that_exceeds_it(local: Target, tmp_path: Path) -> None:
    """Its first pages go to the host, beside a chunk, which stays."""
    free = local.machine.devices[0].free_bytes
    if not free or not local.machine.host_bytes or local.machine.host_bytes < 8 * GiB:
        pytest.skip("needs the free memory of the GPU, and 8 GiB of the host")
    size = (free + 1 * GiB) // MiB
    spec = tmp_path / "spec.yaml"
    text = f"{CHUNK}managed: {{m: {{size: {size}MiB, oversubscribe: true}}}}\n"
    spec.write_text(f"memtopo: 1\nname: exceeding\n{text}")
    assert codes(text, local.machine) == []
    assert codes(text.replace(", oversubscribe: true", ""), local.machine) == ["MT402"]
    program = [sys.executable, "-m", "tests.gpu.oversubscribing_program", str(spec)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ZZZZ"), done.stderr
