"""Commands run in this process, through the same entry as in one of their own, for tables with many rows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.cli.app import run
from tests.cli.running import Said, checked, environment
from tests.sharing.conftest import start

__all__ = ["here", "start"]


class Here:
    """Runs command lines in this process; the streams are the real ones, which pytest captures."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture, self._patch = capture, patch

    def __call__(self, *arguments: str | Path, **variables: str) -> Said:
        with self._patch.context() as patch:
            for name in set(os.environ) - set(environment()):
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            status = run([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        return checked(Said(status, out, err))


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A way to run command lines without the start of a process."""
    before = sys.stdout, sys.stderr
    yield Here(capfd, monkeypatch)
    sys.stdout, sys.stderr = before
