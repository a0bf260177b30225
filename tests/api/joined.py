"""Processes of a test that join a layout, and execute its requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.api.child_process import Process

MACHINE = "h200x4"
TIMEOUT = 60


class Joined:
    """A process that joins, and executes the requests of a test."""

    def __init__(self, runtime: Path, spec: Path, process: str, **arguments: Any) -> None:
        arguments = {"machine": MACHINE, "timeout": TIMEOUT, **arguments}
        self._process = Process("joiner", runtime, spec=str(spec), process=process, **arguments)
        self.pid = self._process.pid
        self.send, self.read, self.kill = self._process.send, self._process.read_line, self._process.kill

    def request(self, method: str, *given: Any) -> None:
        stdin = self._process.process.stdin
        assert stdin
        stdin.write(json.dumps([method, *given]).encode() + b"\n")
        stdin.flush()

    def call(self, method: str, *given: Any) -> Any:
        self.request(method, *given)
        return self.read()

    def leave(self) -> None:
        self._process.close_input()

    def ended(self) -> int:
        return self._process.ended()


Start = Callable[..., list[Joined]]


def ready(members: Sequence[Joined]) -> list[Any]:
    """Return the first lines of all members, which they print once the layout is complete."""
    return [each.read() for each in members]


def reports(members: Sequence[Joined]) -> list[Any]:
    """Let all leave at once, and return their last lines."""
    for each in members:
        each.leave()
    return [each.read() for each in members]
