"""A number of inputs made by chance, and what the worst of them took: `python -m tests.fuzz.many SEED COUNT`."""

from __future__ import annotations

import json
import re
import sys
import time
from itertools import islice
from pathlib import Path

from tests.fuzz import answers
from tests.fuzz.mutating import ROOT, mutations, seeds


def main() -> None:
    """Answer the inputs, and print the longest that one took in seconds, and the peak of memory in MiB, as JSON.

    One that is not answered is kept in tests/corpus/, and ends the run.
    """
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    slowest = max(_took(data, f"crash-{seed}") for data in islice(mutations(seed, seeds()), count))
    print(json.dumps([slowest, _peak()]))  # noqa: T201 it is a program


def _took(data: bytes, name: str) -> float:
    start = time.process_time()
    try:
        answers.source(data)
        answers.spec(data)
    except BaseException:
        (ROOT / "tests" / "corpus" / name).write_bytes(data)
        raise
    return time.process_time() - start


def _peak() -> int:
    """Of this program alone; what getrusage tells begins with what its parent had when it was started."""
    told = re.search(r"VmHWM:\s*([0-9]+) kB", Path("/proc/self/status").read_text())
    assert told
    return int(told[1]) >> 10


if __name__ == "__main__":
    main()
