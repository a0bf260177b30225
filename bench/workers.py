"""The start of one worker process more, compared with an interpreter that imports what a worker imports.

Needs no GPU. Processor time of a simulated `memtopo apply` of eight processes less that of two, for each of the six.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench import processes

ROOT = Path(__file__).parent.parent
FEW, MANY = 2, 8
ROUNDS = 5
LARGEST, LARGEST_RATIO = 0.4, 0.8


def main() -> None:
    """Print the seconds of both, and the median ratio of the pairs."""
    alone = [sys.executable, "-c", "import memtopo.run.processes.worker"]
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        few, many = (_command(Path(folder), count) for count in (FEW, MANY))
        for _ in range(ROUNDS):
            more = processes.cpu_seconds(many, ROOT) - processes.cpu_seconds(few, ROOT)
            pairs.append((processes.cpu_seconds(alone, ROOT), more / (MANY - FEW)))
    imported, worker = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for other, one in pairs)
    print(f"a simulated apply of {MANY} processes less one of {FEW}, processor time, {ROUNDS} rounds")
    print(f"an interpreter with a worker's imports {imported:6.2f} s")
    print(f"one worker more                        {worker:6.2f} s   (at most {LARGEST})")
    print(f"ratio, median of the pairs             {ratio:6.2f}   (at most {LARGEST_RATIO})")


def _command(folder: Path, count: int) -> list[str]:
    spec = folder / f"{count}.yaml"
    kinds = (
        "chunks: {c: {location: gpu0, size: 2MiB}}, ranges: {r: {size: 2MiB}}, map: {r: [c]}, access: {r: {gpu0: rw}}"
    )
    spec.write_text(f"memtopo: 1\nname: workers\nprocesses:\n  w: {{count: {count}, {kinds}}}\n")
    return [sys.executable, "-m", "memtopo", "apply", str(spec), "--machine", "h200x2"]
