"""Commands run in this process through the entry point of the program, for tests with many cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memtopo.cli.app import run
from tests.helpers.checked_specs import checked, folder
from tests.helpers.command_line import MEMTOPO, ROOT, CommandResult, environment, without_crash
from tests.helpers.python_process import PythonProcess
from tests.sharing.conftest import shared, start

__all__ = ["checked", "folder", "run_inline", "shared", "start"]


class InlineRunner:
    """Runs command lines in this process; the streams are the real ones, which pytest captures."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capture, self._patch = capture, patch

    def __call__(self, *arguments: str | Path, **variables: str) -> CommandResult:
        with self._patch.context() as patch:
            given = environment(**variables)
            for name in set(os.environ) - set(given):
                patch.delenv(name)
            for name, value in given.items():
                patch.setenv(name, value)
            before = set(threading.enumerate())
            status = run([str(argument) for argument in arguments])
            for thread in set(threading.enumerate()) - before:  # CUDA's, whose files the next command would count
                thread.join()
        out, err = self._capture.readouterr()
        return without_crash(CommandResult(status, out, err))


@pytest.fixture
def run_inline(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineRunner]:
    """Runner of command lines in this process."""
    before = sys.stdout, sys.stderr
    yield InlineRunner(capfd, monkeypatch)
    sys.stdout, sys.stderr = before


@contextmanager
def held(
    folder: Path, spec: str | Path = "spec.yaml", *options: str | Path, machine: str = "h100x1", **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A layout in the runtime directory `folder` that a process holds; unless it was killed, it ends without a leak."""
    command = [*MEMTOPO, "apply", *map(str, (spec, "--machine", machine, "--hold", "--json", *options))]
    given = environment(XDG_RUNTIME_DIR=str(folder), PYTHONPATH=str(ROOT), **variables)
    with PythonProcess(command, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert any(line.startswith(b"holding ") for line in process.stderr)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                report = json.loads(process.communicate()[0])
                assert (report["outcome"], report["leaks"]) == ("ok", [])
