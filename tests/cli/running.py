"""memtopo as a process: what it said on which stream, and how it ended. No test of a command line sees a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = str(ROOT / "specs" / "quickstart.yaml")
MEMTOPO = (sys.executable, "-m", "memtopo")
NEVER = ("Traceback", "Exception ignored", "internal error")
_OURS = (
    *("MEMTOPO_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "LANG", "LC_", "PYTHONIOENCODING", "PYTHONUTF8"),
    *("GITHUB_", "CI_PROJECT_DIR"),
)


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """All of stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def widest(self) -> int:
        """The length of the longest line on stdout."""
        return max(map(len, self.out.splitlines()), default=0)


def environment(**more: str) -> dict[str, str]:
    """The environment that a test begins with: nothing in it that speaks to memtopo but what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    # What the tests themselves were started with may be where memtopo's dependencies are.
    found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": found, "LANG": "C.UTF-8"} | more


def memtopo(*arguments: str | Path, **variables: str) -> Said:
    """Run memtopo to its end, in an environment with the given variables."""
    return _run([*MEMTOPO, *map(str, arguments)], variables)


def piped(stdin: bytes, *arguments: str) -> Said:
    """Run memtopo with something on its standard input."""
    return _run([*MEMTOPO, *arguments], {}, stdin)


def shell(script: str, *arguments: str, **variables: str) -> Said:
    """Run a script of bash, in which `memtopo` is the program and "$@" are the arguments."""
    text = f'memtopo() {{ "{sys.executable}" -m memtopo "$@"; }}\n{script}'
    return _run(["bash", "-c", text, "bash", *arguments], variables)


def checked(said: Said) -> Said:
    """What a command said, after a look that it is no crash."""
    for word in NEVER:
        assert word not in said.out + said.err, said
    assert said.status != 70, said
    return said


def _run(command: list[str], variables: dict[str, str], stdin: bytes = b"") -> Said:
    told = environment(**variables)
    done = subprocess.run(command, env=told, input=stdin, capture_output=True, check=False, timeout=120)
    return checked(Said(done.returncode, done.stdout.decode(), done.stderr.decode()))
