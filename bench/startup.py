"""CPU time of a cold `memtopo validate` of one spec, compared with baseline.py.

Both are whole processes, and run from bytecode, as installed programs do.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench import processes

ROOT = Path(__file__).parent.parent
SPEC = "specs/quickstart.yaml"
MEMTOPO = ("-m", "memtopo", "validate", SPEC, "--machine", "h200x2")
BASELINE = ("bench/baseline.py", SPEC)
ROUNDS = 25
LARGEST_RATIO = 1.4


def main() -> None:
    """Print both times in ms of user and system time, and the median ratio of the pairs."""
    with tempfile.TemporaryDirectory() as bytecode:
        environment = processes.with_bytecode(bytecode)
        pairs = [(_took(MEMTOPO, environment), _took(BASELINE, environment)) for _ in range(ROUNDS + 1)][1:]
    ours, baseline = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    ratio = statistics.median(mine / base for mine, base in pairs)
    print(f"memtopo {' '.join(MEMTOPO[2:])}, median of {ROUNDS} alternating cold starts, user and system time")
    print(f"bench/baseline.py {baseline:6.1f} ms")
    print(f"memtopo           {ours:6.1f} ms")
    print(f"ratio, median of the pairs {ratio:4.2f}   (at most {LARGEST_RATIO})")


def _took(arguments: tuple[str, ...], environment: dict[str, str]) -> float:
    return processes.cpu_seconds([sys.executable, *arguments], ROOT, environment)
