"""A runtime directory and child processes for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memtopo.drivers.target import Target
from tests.api.child_process import Process
from tests.helpers.machines import invented

TWO = Target("invented", invented(2), simulated=True, _opener=lambda: _open())


def _open() -> Any:
    from memtopo.drivers.sim import SimDriver

    driver = SimDriver(invented(2))
    driver.init()
    return driver


@pytest.fixture
def machine() -> Target:
    """A simulated machine of two GPUs and a host with one node, as peers."""
    return TWO


@pytest.fixture
def start(runtime: Path) -> Iterator[Callable[..., Process]]:
    """A function that starts scripts of tests/api as processes; a holder serves when it returns."""
    started: list[Process] = []

    def begin(script: str = "holder", **arguments: Any) -> Process:
        found = Process(script, runtime, **arguments)
        started.append(found)
        if script == "holder":
            assert "serving" in (found.read_line() or {})
        return found

    yield begin
    for each in started:
        each.kill()
