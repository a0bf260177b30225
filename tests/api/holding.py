"""Other processes as tests of the API need them: scripts of tests/api that say a line of JSON at a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cli.running import ROOT, environment


class Process:
    """A script in a process of its own, whose layouts are those of a runtime directory."""

    def __init__(self, script: str, runtime: Path, **wish: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.api.{script}", json.dumps(wish)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(XDG_RUNTIME_DIR=str(runtime)),
        )

    def said(self) -> Any:
        """Its next line; None where it says no more."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def end(self) -> list[Any]:
        """All that it still says, once SIGTERM has come."""
        self.process.send_signal(signal.SIGTERM)
        said = list(iter(self.said, None))
        assert self.process.wait(60) == 0
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with suppress(OSError):
                stream.close()
