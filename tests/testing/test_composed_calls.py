"""Calls that the simulator composes from others answer as a GPU did."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.command_line import environment
from tests.helpers.specs import ROOT

RECORDED = ROOT / "tests" / "data" / "composed_calls.json"


def answers(*machine: str) -> dict[str, Any]:
    """Answers by case, in a process of their own."""
    command = [sys.executable, "-m", "tests.helpers.composed_calls", *machine]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    return {name: answer for name, *answer in json.loads(done.stdout)}


def test_composed_calls_answer_as_a_gpu_did() -> None:
    recorded = json.loads(RECORDED.read_text())["answers"]
    assert answers("h200x2") == {name: answer for name, *answer in recorded}


@pytest.mark.gpu
def test_composed_calls_answer_as_the_gpu_here_does() -> None:
    assert answers() == answers("h200x2")
