"""Memory of a real host: its NUMA nodes, and managed memory that exceeds a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.common.units import GiB, MiB
from memtopo.drivers.target import Target
from tests.helpers.specs import ROOT, codes

pytestmark = pytest.mark.gpu
CHUNK = "ranges: {r: {size: 1GiB}}\nchunks: {c: {location: gpu0, size: 1GiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}\n"


def test_the_nodes_of_the_host_have_its_memory(local: Target) -> None:
    machine = local.machine
    assert machine.host_bytes
    if not machine.node_bytes:
        pytest.skip("the system does not say what its NUMA nodes have")
    assert {str(node) for node in machine.node_bytes} == {*machine.host} - {"host"}
    assert sum(machine.node_bytes.values()) == machine.host_bytes
    node, size = next(iter(machine.node_bytes.items()))
    text = f"ranges: {{r: {{size: SIZE}}}}\nchunks: {{c: {{location: {node}, size: SIZE}}}}\nmap: {{r: c}}\n"
    text += "access: {r: {gpu0: rw}}\n"
    assert codes(text.replace("SIZE", "64MiB"), machine) == []
    assert codes(text.replace("SIZE", f"{size // MiB // 2 * 2 + 2}MiB"), machine) == ["MT402"]


def test_a_gpu_writes_managed_memory_that_exceeds_it(local: Target, tmp_path: Path) -> None:
    """Its first pages go to the host, beside a chunk, which stays.

    In a process of its own, since the driver keeps what it touched until the process ends (fact 60).
    """
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
