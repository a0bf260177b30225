"""The programs of the pages run. Those with a file name run with the commands of their page (tests/test_docs.py)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import memtopo
from tests.api.child_process import Process
from tests.helpers.command_line import ROOT, environment, run_memtopo
from tests.helpers.pages import Block, blocks, family, of, text_of
from tests.helpers.python_process import run_python

PAGE = text_of("api")
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


SLEEPING = """
memtopo: 1
name: sleep-mode
ranges: {weights: {size: 4MiB}}
chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
map: {weights: [w]}
access: {weights: {gpu0: rw}}
exports: {weights: {chunk: w, via: fd}}
states: {level-1: {drop: [weights]}}
"""
CACHE = next(block.text for block in blocks(ROOT / "docs" / "changing.md") if block.language == "yaml")
FRAGMENTS = [
    block
    for block in of("python")
    if block.page not in family("api")
    and not block.title
    and not {"gpu", "notest"} & set(block.info.split())  # run on a GPU alone, or beside what the page has started
]
GIVEN = """
import functools
import sys
import memtopo
import numpy

sys.modules["torch"] = torch = numpy
memtopo.applied = functools.partial(memtopo.applied, machine="h200x2")
rounds = iter([True, True, False])
serving = type("Serving", (), {"__bool__": lambda self: next(rounds)})()
pause_or_resume = generate = lambda given: None
"""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_program_on_the_pages_runs_without_a_warning(
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


@pytest.mark.parametrize("block", FRAGMENTS, ids=[block.where for block in FRAGMENTS])
def test_fragments_of_the_pages_run_on_a_simulated_machine(
    block: Block, start: Callable[..., Process], runtime: Path, tmp_path: Path
) -> None:
    """With NumPy in place of PyTorch, beside a holder, and with what a fragment takes as given."""
    (tmp_path / "sleeping.yaml").write_text(SLEEPING)
    held_by = {"kv-store": "specs/hold.yaml", "sleep-mode": str(tmp_path / "sleeping.yaml")}
    for spec in (spec for name, spec in held_by.items() if f'attach("{name}"' in block.text):
        start(spec=spec, machine="h100x1")
    for name, link in ((name, ROOT / name) for name in ("specs", "examples")):
        (tmp_path / name).symlink_to(link)
    for name, size in (("cache.yaml", "256MiB"), ("larger.yaml", "512MiB")):
        (tmp_path / name).write_text("memtopo: 1\nname: cache\n" + CACHE.replace("256MiB", size))
    (tmp_path / "h200x4.json").write_text(run_memtopo("machines", "h200x4", "--json").out)
    text = GIVEN + block.text.replace("/run/memtopo-kv", str(runtime / "memtopo"))
    command = [sys.executable, "-W", "error", "-c", text]
    env = environment(XDG_RUNTIME_DIR=str(runtime))
    done = run_python(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), block.where


def test_the_pages_name_every_public_name() -> None:
    assert [name for name in memtopo.__all__ if not name.startswith("_") and name not in PAGE] == []
