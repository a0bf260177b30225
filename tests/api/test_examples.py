"""The programs of examples/ that need no GPU; the others are run by test_gpu_sharing.py."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.running import ROOT, environment


def test_applied_numpy() -> None:
    """The ring buffer's example prints what it says that it prints"""
    command = [sys.executable, "-W", "error", "examples/applied_numpy.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[3. 4.] [1. 2.]\n", "")


def test_examples_are_short() -> None:
    """An example of the API has about ten lines"""
    for name in ("applied_numpy", "attach_cupy", "attach_torch"):
        lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
        assert sum(bool(line) for line in lines) <= 10
