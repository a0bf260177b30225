"""CPU time of child processes, and an environment in which they run from bytecode, as installed programs do."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def cpu_seconds(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> float:
    """User and system time in seconds of a command that must succeed; its output is discarded."""
    before = _spent()
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)
    return _spent() - before


def with_bytecode(folder: str | Path) -> dict[str, str]:
    """Environment in which processes write bytecode to a folder and read it from there, whatever this one does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder)}


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
