"""Modules of the tests as processes of their own, which print lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.helpers.command_line import ROOT, environment
from tests.helpers.python_process import PythonProcess

PATIENCE = 60.0
"""Seconds after which a test gives up; none waits for them."""


class ChildProcess:
    """A module in a process of its own, with an argument as JSON, and a runtime directory for sockets of layouts.

    `before` is a command that runs it, as in other namespaces.
    """

    def __init__(
        self, module: str, argument: Any, runtime: Path | None = None, *, before: Sequence[str] = (), **variables: str
    ) -> None:
        known = {"XDG_RUNTIME_DIR": str(runtime)} if runtime else {}
        self.process = PythonProcess(
            [*before, sys.executable, "-m", module, json.dumps(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(**known, **variables),
        )
        self.pid = self.process.pid

    def read_line(self) -> Any:
        """Return its next line of output; None at the end."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close_input(self) -> None:
        """Let it read the end of its standard input."""
        assert self.process.stdin
        self.process.stdin.close()

    def ended(self) -> int:
        """Wait for its end; return its exit status."""
        return self.process.wait(PATIENCE)

    def open_descriptors(self) -> int:
        """Return the number of its open descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with suppress(OSError):
                stream.close()
