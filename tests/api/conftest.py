"""A runtime directory and child processes for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from memtopo.drivers.target import Target
from tests.api.child_process import Process
from tests.api.joined import Joined, Start
from tests.helpers.held_layouts import Held, Switch, held, switching
from tests.helpers.holders import until
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


@pytest.fixture
def layout(request: pytest.FixtureRequest, machine: Target, runtime: Path) -> Iterator[Held]:
    """The layout of the module's SPEC, held in this process."""
    del runtime
    with held(request.module.SPEC, machine) as found:
        yield found
    assert (found.report.outcome, found.report.leaks) == ("ok", ())


@pytest.fixture
def switch(request: pytest.FixtureRequest, layout: Held) -> Iterator[Switch]:
    """Requests a switch of the layout, in a thread."""
    del layout
    with switching(request.module.SPEC["name"]) as request_switch:
        yield request_switch


@pytest.fixture
def join(runtime: Path) -> Iterator[Start]:
    """A function that starts processes of a spec, which join it; afterwards no coordinator and no file is left."""
    started: list[Joined] = []

    def begin(spec: Path, processes: Sequence[str], **arguments: Any) -> list[Joined]:
        new = [Joined(runtime, spec, process, **arguments) for process in processes]
        started.extend(new)
        return new

    yield begin
    for each in started:
        each.kill()
    until(lambda: [*(runtime / "memtopo").glob("*")] == [])
