"""A whole `memtopo apply` of 100,000 chunks on the simulator with the fast check, compared with one of 10,000.

Needs no GPU. Processor time of whole processes, from bytecode.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench import processes, scaling

ROOT = Path(__file__).parent.parent
ROUNDS = 3
LARGEST, LARGEST_RATIO = 10, 12


def main() -> None:
    """Print the seconds of both, and the median ratio of the pairs."""
    with tempfile.TemporaryDirectory() as folder:
        commands = [_command(Path(folder), count) for count in scaling.SIZES]
        rounds = [[processes.cpu_seconds(each, ROOT) for each in commands] for _ in range(ROUNDS)]
    print(f"apply with the fast check on a simulated {scaling.MACHINE}, processor time, median of {ROUNDS} rounds")
    small, large = (statistics.median(times) for times in zip(*rounds, strict=True))
    ratio = statistics.median(slow / fast for fast, slow in rounds)
    print(f"{scaling.SIZES[0]:8,} chunks  {small:7.2f} s")
    print(f"{scaling.SIZES[1]:8,} chunks  {large:7.2f} s   (at most {LARGEST})")
    print(f"ratio, median of the pairs {ratio:5.1f}   (at most {LARGEST_RATIO})")


def _command(folder: Path, count: int) -> list[str]:
    spec = folder / f"{count}.yaml"
    spec.write_text(scaling.FORMS["count"](count))
    return [sys.executable, "-m", "memtopo", "apply", str(spec), "--machine", scaling.MACHINE]
