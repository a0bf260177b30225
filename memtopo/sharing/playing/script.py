"""What a built-in producer plays: everything that a spec takes from one holder, and what it is to have signalled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """External memory of `size` bytes on the GPU with this UUID, as hex text."""

    name: str
    size: int
    gpu: str
    dedicated: bool


@dataclass(frozen=True, slots=True)
class Semaphore:
    """A semaphore, and what importers wait for and signal, where they do."""

    name: str
    timeline: bool
    gpu: str
    wait: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class Script:
    """The exports of one holder on a simulated machine."""

    machine: str
    memory: tuple[Memory, ...]
    semaphores: tuple[Semaphore, ...]

    def text(self) -> bytes:
        """One line that another process can read."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def read(line: bytes) -> Script:
        """Read such a line."""
        fields = json.loads(line)
        memory = tuple(Memory(**each) for each in fields["memory"])
        return Script(fields["machine"], memory, tuple(Semaphore(**each) for each in fields["semaphores"]))
