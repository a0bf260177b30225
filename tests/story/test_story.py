"""Holders, engines and operators under a seeded scheduler, with faults: what was promised holds in every story"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.story.nodes import tell_run
from tests.story.story import LENGTH, apart, tell

_SEEDS = 6
_BLOCK = 25
_BLOCKS = 12


def _hold(first: int, stories: int, length: int = LENGTH) -> None:
    for seed in range(first, first + stories):
        told = apart(lambda seed=seed: tell(seed, length=length))  # type: ignore[misc]
        assert not told.failure, f"python -m tests.story --seed {seed} --stories 1\n{told.failure}"


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_promises_hold_in_a_story(seed: int) -> None:
    _hold(seed, 1, 100)


@pytest.mark.exhaustive(seconds=30)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("block", range(_BLOCKS))
def test_promises_hold_in_many_stories(block: int) -> None:
    _hold(1000 + block * _BLOCK, _BLOCK)


def _hold_on_nodes(first: int, runs: int) -> None:
    for seed in range(first, first + runs):
        told = apart(lambda seed=seed: tell_run(seed))  # type: ignore[misc]
        assert not told.failure, f"python -m tests.story --nodes --seed {seed} --stories 1\n{told.failure}"


@pytest.mark.parametrize("seed", range(0, 12, 4))
def test_promises_hold_in_runs_on_several_nodes(seed: int) -> None:
    _hold_on_nodes(seed, 4)


@pytest.mark.exhaustive(seconds=20)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("block", range(16))
def test_promises_hold_in_many_runs_on_several_nodes(block: int) -> None:
    _hold_on_nodes(1000 + block * _BLOCK, _BLOCK)


@pytest.mark.parametrize("hash_seed", ["1"])
def test_a_seed_is_told_in_the_same_way_in_every_process(hash_seed: str) -> None:
    """Also where sets have another order"""
    command = [sys.executable, "-m", "tests.story", "--seed", "3", "--stories", "1", "--events", "80", "--trace"]
    again = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
    )
    told = apart(lambda: tell(3, length=80))
    assert again.stdout.splitlines()[: len(told.trace)] == [*told.trace]
