"""Importing memtopo loads nothing: the API comes with its first use, and NumPy and CUDA never with memtopo."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import memtopo
from tests.cli.running import ROOT, environment

LATE = ("memtopo.api", "pydantic", "yaml", "numpy", "cuda", "rich", "ctypes")


def loaded(script: str) -> Any:
    """Which of the late modules a program has loaded in the end."""
    text = f"import json, sys\n{script}\nprint(json.dumps([name for name in {LATE!r} if name in sys.modules]))"
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment(), text=True)
    return json.loads(done.stdout)


def test_importing_memtopo_is_cheap() -> None:
    """Importing memtopo loads neither the API nor a package from elsewhere"""
    assert loaded("import memtopo; memtopo.__version__; dir(memtopo)") == []


def test_planning_needs_no_driver_and_no_numpy() -> None:
    """A spec is planned on a recorded machine without CUDA, NumPy or a terminal's package"""
    script = "import memtopo; memtopo.plan('specs/quickstart.yaml', machine='h200x2').steps"
    assert not {"numpy", "cuda", "rich"} & set(loaded(script))


def test_a_layout_needs_no_numpy() -> None:
    """A layout is built and viewed on the simulator without NumPy"""
    script = (
        "import memtopo\n"
        "with memtopo.applied('specs/ring-buffer.yaml', machine='h200x2') as layout:\n"
        "    memory = layout.range('ring').memory\n"
        "    memory[0] = 7\n"
        "    assert memory[len(memory) // 2] == 7\n"
        "    del memory\n"
    )
    assert not {"numpy", "cuda"} & set(loaded(script))


def test_what_memtopo_hands_out() -> None:
    """Everything in `__all__` is there, and nothing else"""
    assert {name for name in memtopo.__all__ if getattr(memtopo, name) is None} == set()
    assert {"load", "plan", "applied", "attach"} < set(dir(memtopo))
    with pytest.raises(AttributeError, match="no attribute 'apply_all'"):
        _ = memtopo.apply_all
