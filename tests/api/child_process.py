"""Scripts of tests/api as child processes that print lines of JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.helpers.command_line import ROOT, environment


class Process:
    """A script in a process of its own, with its own runtime directory for the sockets of layouts."""

    def __init__(self, script: str, runtime: Path, **arguments: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.api.{script}", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(XDG_RUNTIME_DIR=str(runtime)),
        )

    def read_line(self) -> Any:
        """Its next line of output; None at the end."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def end(self) -> list[Any]:
        """Send SIGTERM; return its remaining output."""
        self.process.send_signal(signal.SIGTERM)
        rest = list(iter(self.read_line, None))
        assert self.process.wait(60) == 0
        return rest

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with suppress(OSError):
                stream.close()
