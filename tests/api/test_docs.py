"""The examples of docs/api.md run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import memtopo
from tests.api.child_process import Process
from tests.helpers.command_line import ROOT, environment
from tests.helpers.python_process import run_python

PAGE = (ROOT / "docs" / "api.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


LOADER = """
memtopo: 1
name: loader
ranges: {weights: {size: 2MiB}}
chunks: {w: {location: gpu0, size: 2MiB, handles: fd}}
map: {weights: [w]}
access: {weights: {gpu0: rw}}
exports: {weights: {chunk: w, via: fd, commit: required}}
"""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_program_on_the_page_runs_without_a_warning(
    number: int, start: Callable[..., Process], runtime: Path, tmp_path: Path
) -> None:
    """Beside a holder of specs/hold.yaml, or of weights that a writer commits."""
    loader = tmp_path / "loader.yaml"
    loader.write_text(LOADER)
    held_by = {"loader": str(loader), "nic-kv": "specs/nic-kv.yaml"}
    held = next((spec for word, spec in held_by.items() if word in BLOCKS[number]), "specs/hold.yaml")
    start(spec=held, machine="h200x2")
    command = [sys.executable, "-W", "error", "-c", BLOCKS[number]]
    env = environment(XDG_RUNTIME_DIR=str(runtime))
    done = run_python(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_names_every_public_name() -> None:
    assert [name for name in memtopo.__all__ if not name.startswith("_") and name not in PAGE] == []
