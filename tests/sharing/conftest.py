"""A runtime directory for each test, and holders in it that are gone afterwards."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.holders import Holder, Process
from tests.helpers.memfd_exports import OneState
from tests.helpers.processes import open_descriptors


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder to which other users have a way."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def start(runtime: Path) -> Iterator[Callable[..., Any]]:
    """Starts holders, or other programs of tests/sharing/children beside them."""
    started: list[Process] = []

    def begin(script: str = "holder", **wish: Any) -> Process:
        found = Holder(runtime, wish) if script == "holder" else Process(script, wish, runtime)
        started.append(found)
        return found

    yield begin
    for each in started:
        each.kill()


@pytest.fixture
def layout() -> Iterator[OneState]:
    """Exports of which `page` has no memory in the state asleep; no descriptor of theirs is left at the end."""
    gc.collect()
    before = open_descriptors()
    found = OneState()
    yield found
    os.close(found.memory)
    assert open_descriptors() == before


@pytest.fixture
def holder(start: Callable[..., Holder]) -> Holder:
    """A holder of the layout kv."""
    return start()


@pytest.fixture
def client(holder: Holder) -> Iterator[Client]:
    """A connection to it."""
    with connect(endpoint("kv")) as found:
        yield found
