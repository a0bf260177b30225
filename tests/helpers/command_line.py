"""memtopo as a process: its output and exit status. No run may print a traceback."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.python_process import run_python, shell_command

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = str(ROOT / "specs" / "quickstart.yaml")
MEMTOPO = (sys.executable, "-m", "memtopo")
NEVER = ("Traceback", "Exception ignored", "internal error")
_OURS = (
    *("MEMTOPO_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "LANG", "LC_", "PYTHONIOENCODING", "PYTHONUTF8"),
    *("GITHUB_", "CI_PROJECT_DIR"),
)


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """All of stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def widest(self) -> int:
        """Length of the longest line on stdout."""
        return max(map(len, self.out.splitlines()), default=0)


def environment(**more: str) -> dict[str, str]:
    """Environment without variables that influence memtopo, except those given; without progress, which takes time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    # What the tests themselves were started with may be where memtopo's dependencies are.
    found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": found, "LANG": "C.UTF-8", "MEMTOPO_PROGRESS": "none"} | more


def run_memtopo(*arguments: str | Path, **variables: str) -> CommandResult:
    """Run memtopo in an environment with the given variables."""
    return _run([*MEMTOPO, *map(str, arguments)], variables)


def run_with_input(stdin: bytes, *arguments: str) -> CommandResult:
    """Run memtopo with a text on its standard input."""
    return _run([*MEMTOPO, *arguments], {}, stdin)


def run_shell(script: str, *arguments: str, **variables: str) -> CommandResult:
    """Run a script of bash in which `memtopo` is the program and "$@" are the arguments."""
    text = f'memtopo() {{ {shell_command()} "$@"; }}\n{script}'
    return _run(["bash", "-c", text, "bash", *arguments], variables)


def without_crash(result: CommandResult) -> CommandResult:
    """Return a result after verifying that the command did not crash."""
    for word in NEVER:
        assert word not in result.out + result.err, result
    assert result.status != 70, result
    return result


def _run(command: list[str], variables: dict[str, str], stdin: bytes = b"") -> CommandResult:
    environ = environment(**variables)
    done = run_python(command, env=environ, input=stdin, capture_output=True, check=False, timeout=120)
    return without_crash(CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode()))


def write_program(path: Path) -> None:
    """Write a script that runs memtopo as installed here, as long as this process does."""
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nexec {shell_command()} "$@"\n')
    path.chmod(0o755)
