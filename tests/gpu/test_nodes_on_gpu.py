"""Two Ray nodes of one GPU each, on one host: a spec over both of them is applied, checked, held and released."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from memtopo.drivers.target import Target
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]

SPEC = """
memtopo: 1
name: two-nodes
processes:
  rank:
    count: 4
    nodes: [a, b]
    devices: {mine: gpus}
    ranges: {weights: {size: 128MiB}, kv: {size: 64MiB}}
    chunks:
      shard: {location: mine, size: 64MiB, handles: fd}
      page: {location: mine, size: 2MiB, count: 32}
    buffers: {signal: {location: mine, size: 64KiB}}
    events: {done: {device: mine}}
    exports:
      shard: {chunk: shard, via: fd}
      signal: {buffer: signal, via: ipc}
    imports:
      shards: {from: rank.shard, order: own-node}
      signals: {from: rank.signal, order: own-node}
    map: {weights: [shards], kv: [page]}
    access: {weights: {mine: rw}, kv: {mine: rw}}
"""
NODES = {"a": ["rank.0", "rank.1"], "b": ["rank.2", "rank.3"]}


@pytest.fixture(scope="module")
def environment(local: Target) -> Iterator[dict[str, str]]:
    """Environment of commands that use a cluster whose two nodes have a GPU each."""
    if len(local.machine.devices) < 2:
        pytest.skip("needs two GPUs")
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "helpers" / "ray_cluster.py"), "2", "--gpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=own,
        text=True,
    ) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield {**own, "RAY_ADDRESS": address}
        assert process.stdin
        process.stdin.close()


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    file = tmp_path / "nodes.yaml"
    file.write_text(SPEC)
    return [sys.executable, "-m", "memtopo", "apply", str(file), "--on", "ray", "--gpus", "1"]


@pytest.mark.parametrize("check", ["fast", "full"])
def test_each_node_builds_the_processes_of_its_gpu(environment: dict[str, str], command: list[str], check: str) -> None:
    done = subprocess.run(
        [*command, "--check", check, "--json"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["outcome"] == "ok"
    assert {node["name"]: node["processes"] for node in report["nodes"]} == NODES
    assert all(not any(node["left"]["ledger_after"].values()) for node in report["nodes"])
    tallies = {each["aspect"]: each for each in report["checks"]["tallies"]}
    assert tallies["imported"]["not_checked"] == 0 < tallies["imported"]["as_declared"]
    assert report["checks"]["different"] == 0


def test_a_held_layout_serves_the_exports_of_each_node(
    environment: dict[str, str], command: list[str], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*command, "--hold", "--socket", str(tmp_path / "{node}.sock")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as driver:
        assert driver.stderr
        assert {driver.stderr.readline().split()[4].strip(",") for _ in NODES} == set(NODES)
        for node, labels in NODES.items():
            with connect(endpoint(socket=str(tmp_path / f"{node}.sock"))) as client:
                offered = {f"{label}.{name}" for label in labels for name in ("shard", "signal")}
                assert set(client.offers()) == offered
                assert client.check().different == 0
        with connect(endpoint(socket=str(tmp_path / "b.sock"))) as client:
            assert client.release().gone
        out, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors + out
