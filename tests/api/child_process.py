"""Scripts of tests/api as child processes."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers.child_process import ChildProcess


class Process(ChildProcess):
    """A script of tests/api in a process of its own; `variables` are of its environment."""

    def __init__(
        self, script: str, runtime: Path, *, variables: Mapping[str, str] | None = None, **arguments: Any
    ) -> None:
        super().__init__(f"tests.api.{script}", arguments, runtime, **variables or {})

    def end(self) -> list[Any]:
        """Send SIGTERM, after which it succeeds; return its remaining output."""
        self.send(signal.SIGTERM)
        rest = list(iter(self.read_line, None))
        assert self.ended() == 0
        return rest
