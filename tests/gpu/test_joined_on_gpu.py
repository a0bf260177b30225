"""Joined processes on real GPUs: those of one GPU, lent chunks, and ranks of torchrun and Ray on two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.drivers.target import Target
from tests.api.joined import TIMEOUT, Joined, Start, ready, reports
from tests.api.test_join import PAIR
from tests.api.test_join_held import POOL, importers
from tests.api.test_launchers import TORCHRUN, run_program
from tests.gpu.test_multi_process import memory_comes_back  # noqa: F401 a fixture
from tests.helpers.command_line import ROOT, environment
from tests.helpers.holders import until
from tests.helpers.python_process import run_python

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
M = 2 << 20


@pytest.fixture
def two(local: Target) -> None:
    """A machine of two GPUs."""
    if len(local.machine.devices) < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture
def started(runtime: Path) -> Iterator[Start]:
    """A function that starts processes on this machine's GPUs, which join a spec."""
    every: list[Joined] = []

    def begin(spec: Path, labels: list[str], **arguments: Any) -> list[Joined]:
        new = [Joined(runtime, spec, label, machine="local", **arguments) for label in labels]
        every.extend(new)
        return new

    yield begin
    for each in every:
        each.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A spec of two processes that share the first GPU."""
    file = tmp_path / "pair.yaml"
    file.write_text(PAIR.replace("    devices: {mine: [gpu0, gpu1]}\n", "").replace("mine", "gpu0"))
    return file


@pytest.mark.usefixtures("memory_comes_back")
def test_joined_processes_of_one_gpu_sleep_wake_and_outlive_each_other(started: Start, pair: Path) -> None:
    """Imports of a dead process stay valid (facts 28, 29)."""
    first, second = members = started(pair, ["rank.0", "rank.1"])
    assert all("ranges" in each for each in ready(members))
    for state in ("level-1", "awake"):
        second.request("poll", TIMEOUT)
        assert first.call("switch", state)["state"] == state
        assert second.read()["state"] == state
    assert "error" not in first.call("write", "own", 5)
    assert 5 in second.call("read", "all")["answer"]
    first.kill()
    assert second.call("poll", TIMEOUT)["error"] == "ProcessLost"
    assert 5 in second.call("read", "all")["answer"]
    (report,) = reports([second])
    assert (report["report"]["outcome"], report["report"]["leaks"]) == ("ok", [])


@pytest.mark.usefixtures("memory_comes_back")
def test_what_a_killed_engine_has_sealed_is_adopted_with_its_bytes(started: Start, tmp_path: Path) -> None:
    """Chunks of a held elastic range, which a successor maps; the others are free."""
    spec = tmp_path / "server.yaml"
    spec.write_text(POOL.replace("gpu1", "gpu0"))
    with memtopo.hold(spec):
        (engine,) = started(spec, ["engine.0"])
        ready([engine])
        assert engine.call("elastic", "cache", "map", 0, "pages", 4)["answer"] == [f"pages.{n}" for n in range(4)]
        assert "error" not in engine.call("fill", "cache", 0, 4 * M, 6)
        assert engine.call("elastic", "cache", "seal", 0, 2 * M, "prompt")["answer"] == 1
        engine.kill()
        until(lambda: importers() == [])
        (successor,) = started(spec, ["engine.0"])
        ready([successor])
        assert successor.call("elastic", "cache", "adopt", 4 * M, "prompt")["answer"] == ["pages.0", "pages.1"]
        assert successor.call("part", "cache", 4 * M, 2 * M)["answer"] == [6]
        assert len(successor.call("elastic", "cache", "map", 8 * M, "pages", 4)["answer"]) == 4
        assert reports([successor])[0]["report"]["outcome"] == "ok"
        until(lambda: importers() == [])


@pytest.mark.usefixtures("two")
def test_graphs_of_ranks_beside_nccl_replay_after_sleep_and_wake(runtime: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, *TORCHRUN, str(ROOT / "tests" / "gpu" / "nccl_rank.py")]
    variables = environment(XDG_RUNTIME_DIR=str(runtime), NCCL_NVLS_ENABLE="0")  # without multicast
    done = run_python(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 of 2: ok", "rank 1 of 2: ok"]


@pytest.mark.usefixtures("two")
def test_ranks_of_torchrun_are_those_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    lines = run_program("server.py", tmp_path, *TORCHRUN, machine="")
    assert lines == ["rank.0: 1.0 1.0", "rank.1: 2.0 2.0", "state: level-1"]


@pytest.mark.usefixtures("two")
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_actors_of_ray_have_a_gpu_each(tmp_path: Path) -> None:
    """Each sees its own as the first."""
    assert run_program("actors.py", tmp_path, machine="") == [
        "['awake', 'awake']",
        "['level-1', 'level-1']",
        "[1.0, 2.0]",
    ]
