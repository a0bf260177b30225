"""The programs of the page on tensor-parallel servers, whose ranks are actors of Ray, or processes of torchrun."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.command_line import environment
from tests.helpers.holders import until
from tests.helpers.pages import blocks
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT

PAGE = ROOT / "docs" / "how-to" / "tensor-parallel-server.md"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
"""Words between Python and a program that run it as two ranks."""

PATIENCE = 240.0
"""Seconds that a launcher and its processes may take to start on a busy machine."""

RAY = {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "local"}
"""Variables for a cluster of a program's own: without an address, Ray joins that of any other test on this host."""

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def run_program(title: str, folder: Path, *words: str, machine: str = "h200x2") -> list[str]:
    """Run a program of the page with what starts it; return its lines, once nothing of its layout is left.

    Without a machine, it runs on the GPUs of this one.
    """
    (folder / "specs").symlink_to(ROOT / "specs")
    program = folder / title
    program.write_text(next(block.text for block in blocks(PAGE) if block.title == title))
    (folder / "run").mkdir(mode=0o700)
    variables = {"XDG_RUNTIME_DIR": str(folder / "run"), "PYTHONUNBUFFERED": "", **RAY}
    command = [sys.executable, *words, str(program), *filter(None, [machine])]
    done = run_python(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    until(lambda: not [*folder.glob("run/memtopo/*")])
    return sorted(done.stdout.splitlines())


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_actors_of_ray_are_the_processes_that_they_are_named_as(tmp_path: Path) -> None:
    lines = run_program("actors.py", tmp_path)
    assert lines == ["['awake', 'awake']", "['level-1', 'level-1']", "[1.0, 2.0]"]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch, which has torchrun, is not installed")
def test_processes_of_torchrun_are_the_ranks_of_the_spec(tmp_path: Path) -> None:
    lines = run_program("server.py", tmp_path, *TORCHRUN)
    assert lines == ["rank.0: 1.0 1.0", "rank.1: 2.0 2.0", "state: level-1"]
