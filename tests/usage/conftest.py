"""Stand-ins for device files, and holders in a runtime directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.usage import ProcessFiles
from tests.helpers.child_process import ChildProcess
from tests.sharing.conftest import start

__all__ = ["start"]


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A folder with files named as those of NVIDIA's driver."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidiactl", "null"):
        (folder / name).touch()
    return folder


@pytest.fixture
def files(dev: Path) -> ProcessFiles:
    """The real /proc, with these device files."""
    return ProcessFiles(dev=dev)


@pytest.fixture
def user(dev: Path) -> Iterator[ChildProcess]:
    """A process that has one descriptor of nvidia0 and two of nvidiactl."""
    names = [str(dev / name) for name in ("nvidia0", "nvidiactl", "nvidiactl", "null")]
    child = ChildProcess("tests.helpers.open_files", names)
    assert child.read_line() == len(names)
    yield child
    child.kill()
