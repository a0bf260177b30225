"""Random inputs, with the largest time and memory that they took: `python -m tests.fuzz.shard SEED COUNT`."""

from __future__ import annotations

import json
import re
import sys
import time
from itertools import islice
from pathlib import Path

from tests.fuzz import checks
from tests.fuzz.mutation import ROOT, mutations, seeds


def main() -> None:
    """Check the inputs; print the longest time of one in seconds and the peak memory in MiB as JSON.

    An input that fails is written to tests/corpus/, and ends the run.
    """
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    slowest = max(_took(data, f"crash-{seed}") for data in islice(mutations(seed, seeds()), count))
    print(json.dumps([slowest, _peak()]))  # noqa: T201 it is a program


def _took(data: bytes, name: str) -> float:
    start = time.process_time()
    try:
        checks.source(data)
        checks.spec(data)
    except BaseException:
        (ROOT / "tests" / "corpus" / name).write_bytes(data)
        raise
    return time.process_time() - start


def _peak() -> int:
    """Peak memory of this program alone; getrusage would include that of its parent at the start."""
    peak = re.search(r"VmHWM:\s*([0-9]+) kB", Path("/proc/self/status").read_text())
    assert peak
    return int(peak[1]) >> 10


if __name__ == "__main__":
    main()
