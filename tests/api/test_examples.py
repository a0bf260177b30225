"""The programs of examples/ that need no GPU; the others are run by test_gpu_sharing.py."""

from __future__ import annotations

import sys

from tests.helpers.command_line import ROOT, environment
from tests.helpers.python_process import run_python


def test_the_numpy_example_prints_its_documented_output() -> None:
    command = [sys.executable, "-W", "error", "examples/applied_numpy.py"]
    done = run_python(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[3. 4.] [1. 2.]\n", "")


def test_examples_have_about_ten_lines() -> None:
    for name in ("applied_numpy", "attach_cupy", "attach_torch"):
        lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines()
        assert sum(bool(line) for line in lines) <= 10
