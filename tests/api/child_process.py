"""Scripts of tests/api as child processes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from tests.helpers.child_process import ChildProcess


class Process(ChildProcess):
    """A script of tests/api in a process of its own."""

    def __init__(self, script: str, runtime: Path, **arguments: Any) -> None:
        super().__init__(f"tests.api.{script}", arguments, runtime)

    def end(self) -> list[Any]:
        """Send SIGTERM, after which it succeeds; return its remaining output."""
        self.send(signal.SIGTERM)
        rest = list(iter(self.read_line, None))
        assert self.ended() == 0
        return rest
