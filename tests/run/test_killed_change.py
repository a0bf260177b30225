"""A holder that gets a signal during a change: killed, it leaves nothing; ended, it goes back and takes down."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import ROOT, environment
from tests.helpers.python_process import run_python

ENDING = ("SIGTERM", "SIGINT", "SIGHUP")


def points(folder: Path, number: str, stride: int) -> list[dict[str, Any]]:
    """Results of a change that nothing disturbs, and of one with a signal at each `stride`-th driver call."""
    command = [sys.executable, "-m", "tests.run.killed_change_program", number, str(stride)]
    variables = environment(XDG_RUNTIME_DIR=str(folder), PYTHONPATH=str(ROOT))
    done = run_python(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=True)
    whole, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert (whole["change"], whole["outcome"], whole["listed"]) == ("made", "ok", 0)
    assert len(others) == -(-whole["calls"] // stride) >= 50 // stride
    return others


SAMPLE = [("SIGKILL", 13), ("SIGTERM", 13)]
EVERY = [pytest.param(number, 1, marks=pytest.mark.exhaustive(seconds=2)) for number in ("SIGKILL", *ENDING)]


@pytest.mark.parametrize(("number", "stride"), [*SAMPLE, *EVERY])
def test_a_signal_during_a_change_leaves_nothing(tmp_path: Path, number: str, stride: int) -> None:
    found = points(tmp_path, number, stride)
    for point in found:
        assert point["listed"] == 0, point
        if number == "SIGKILL":
            assert (point["change"], point["status"]) == ("gone", -signal.SIGKILL), point
        else:
            assert point["change"] in ("made", "failed"), point
            assert (point["outcome"], point["leaks"], point["empty"]) == ("ok", 0, True), point
    if number != "SIGKILL":
        assert found[0]["change"] == "failed"
