"""Saves and restores of memory of a GPU, compared with `dd` with direct I/O in the same folder.

    python -m bench.saving FOLDER [GIB]

The folder is on the disk that is measured; `dd` has a file of the same size. Without a GPU, the memory is simulated if
a folder is named.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import memtopo
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve
from memtopo.run import saving
from memtopo.storage.direct import BUFFER, THREADS

ROUNDS = 3
LONGEST = 240.0
"""Seconds after which no further round begins."""
CHUNK = 1 << 30

Times = dict[str, list[float]]


def main() -> None:
    """Print the rates in GB/s, and their ratios to `dd`."""
    given = sys.argv[1:] if sys.argv[0].endswith("saving.py") else []
    size = int(given[1] if given[1:] else 16) << 30
    try:
        machine = resolve("local").name
    except Unavailable as error:
        if not given:
            print(f"not run: {error.message}")
            return
        machine = "h200x2"
    with tempfile.TemporaryDirectory(dir=given[0] if given else None) as folder:
        times = measured(machine, size, Path(folder))
    rounds = len(times["save"])
    print(f"{size >> 30} GiB, {THREADS} buffers of {BUFFER >> 20} MiB, median of {rounds} rounds")
    for name, found in times.items():
        beside = times["dd write" if name.startswith("save") else "dd read"]
        ratio = statistics.median(b / a for a, b in zip(found, beside, strict=True))
        rate = size / statistics.median(found) / 1e9
        print(f"{name:10} {statistics.median(found):8.2f} s {rate:8.2f} GB/s {ratio:6.2f} of dd")


def measured(machine: str, size: int, folder: Path) -> Times:
    """Seconds of each round of a save, of one without a change, of a restore, and of `dd`."""
    times: Times = {"dd write": [], "save": [], "dd read": [], "restore": [], "unchanged": []}
    file, saved = folder / "dd", folder / "saved"
    write = ["dd", "if=/dev/zero", f"of={file}", f"bs={BUFFER}", f"count={size // BUFFER}", "oflag=direct"]
    read = ["dd", f"if={file}", "of=/dev/null", f"bs={BUFFER}", "iflag=direct"]
    spec = (
        f"memtopo: 1\nname: bench\nranges: {{w: {{size: {size >> 30}GiB}}}}\n"
        f"chunks: {{c: {{location: gpu0, size: {CHUNK >> 30}GiB, count: {size // CHUNK}}}}}\n"
        "map: {w: [c]}\naccess: {w: {gpu0: rw}}\n"
    )
    (folder / "spec.yaml").write_text(spec)
    with memtopo.applied(folder / "spec.yaml", machine) as layout:
        execution = layout._session.run.execution  # noqa: SLF001 the restore alone
        acts: dict[str, Callable[[], object]] = {
            "dd write": lambda: run([*write, "conv=fsync"]),
            "save": lambda: layout.save(saved),
            "dd read": lambda: run(read),
            "restore": lambda: saving.restored(execution, str(saved), ""),
            "unchanged": lambda: layout.save(saved),
        }
        begun = time.perf_counter()
        for number in range(1, ROUNDS + 1):
            for name, act in acts.items():
                times[name].append(seconds(act))
                print(f"round {number}, {name}: {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
            shutil.rmtree(saved)
            file.unlink()
            if (time.perf_counter() - begun) * (number + 1) / number > LONGEST:
                break
    return times


def run(command: list[str]) -> None:
    """Run a program without its output."""
    subprocess.run(command, check=True, capture_output=True)


def seconds(act: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
