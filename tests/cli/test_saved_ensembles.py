"""Saved plans of several processes: applied only where planning again gives the same for each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import run_memtopo
from tests.helpers.specs import ROOT

WEIGHTS = str(ROOT / "specs" / "weights.yaml")
CHANGES = {
    "more processes": ("    count: 2\\n", "    count: 3\\n", "+reader.2: reserve"),
    "another device": ("[gpu0, gpu1]", "[gpu1, gpu0]", "+reader.0: retain context gpu1"),
    "a smaller chunk": ("size: 256MiB, count: 2", "size: 128MiB, count: 2", "+server: create shard.0 … shard.1"),
    "another slice": ("{chunk: shard, via: fd}", "{chunk: shard.0:1, via: fd}", "+reader.0: import shard"),
    "another order": ("weights: [shard]", "weights: [shard.1, shard.0]", "+server: map shard.1 … shard.0"),
}
"""Text to replace, its replacement, and a part of the message."""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    assert run_memtopo("plan", WEIGHTS, "-m", "h200x2", "-o", str(file)).status == 0
    return file


def test_a_saved_multi_process_plan_is_applied_if_it_still_holds(saved: Path) -> None:
    done = run_memtopo("apply", str(saved), "-m", "h200x2")
    assert done.status == 0, done.err
    assert [process["first"] for process in json.loads(saved.read_text())["plan"]["processes"]] == [
        "server", "reader.0", "reader.1"
    ]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_multi_process_plan_exits_with_7_and_names_the_process(saved: Path, change: str) -> None:
    """Nothing is built."""
    old, new, message = CHANGES[change]
    text = saved.read_text()
    assert old in text
    saved.write_text(text.replace(old, new))
    done = run_memtopo("apply", str(saved), "-m", "h200x2")
    assert done.status == 7, done.err
    assert not done.out
    assert message in done.err


def test_a_saved_multi_process_plan_needs_all_its_gpus(saved: Path) -> None:
    """The missing GPU is reported with its location in the spec."""
    done = run_memtopo("apply", str(saved), "-m", "h100x1")
    assert done.status == 7
    assert "MT401" in done.err
