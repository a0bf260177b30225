"""A cold `memtopo validate` of one spec, against floor.py: the CPU time of both as whole processes.

Both run from bytecode, as installed programs do; where none may be written beside the sources, all would be compiled
anew at each start.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench import processes

ROOT = Path(__file__).parent.parent
SPEC = "specs/quickstart.yaml"
OURS = ("-m", "memtopo", "validate", SPEC, "--machine", "h200x2")
FLOOR = ("bench/floor.py", SPEC)
ROUNDS = 25
LARGEST_RATIO = 1.4


def main() -> None:
    """Print both, in ms of user and system time, and the median ratio of the pairs."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        pairs = [(_took(OURS, environment), _took(FLOOR, environment)) for _ in range(ROUNDS + 1)][1:]
    ours, floor = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    ratio = statistics.median(mine / least for mine, least in pairs)
    print(f"memtopo {' '.join(OURS[2:])}, median of {ROUNDS} cold starts in turn, user and system time")
    print(f"bench/floor.py  {floor:6.1f} ms")
    print(f"memtopo         {ours:6.1f} ms")
    print(f"ratio, median of the pairs {ratio:6.2f}   (at most {LARGEST_RATIO})")


def _took(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    return processes.cpu_seconds([sys.executable, *arguments], ROOT, environment)
