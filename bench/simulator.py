"""A whole `memtopo apply` of 100,000 chunks on the simulator with the fast check, compared with planning the same spec.

Needs no GPU. Processor time of whole processes, from bytecode.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench import processes, scaling

ROOT = Path(__file__).parent.parent
CHUNKS = 100_000
ROUNDS = 3
LARGEST, LARGEST_RATIO = 10, 12


def main() -> None:
    """Print the seconds of both, and the median ratio of the pairs."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.yaml"
        spec.write_text(scaling.FORMS["count"](CHUNKS))
        plan, apply = (
            [sys.executable, "-m", "memtopo", verb, str(spec), "--machine", scaling.MACHINE]
            for verb in ("plan", "apply")
        )
        pairs = [(processes.cpu_seconds(plan, ROOT), processes.cpu_seconds(apply, ROOT)) for _ in range(ROUNDS)]
    planned, applied = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(slow / fast for fast, slow in pairs)
    print(
        f"{CHUNKS:,} chunks on a simulated {scaling.MACHINE}, processor time, median of {ROUNDS} alternating processes"
    )
    print(f"memtopo plan         {planned:8.2f} s")
    print(f"memtopo apply        {applied:8.2f} s   (at most {LARGEST})")
    print(f"ratio, median of the pairs {ratio:8.1f}   (at most {LARGEST_RATIO})")
