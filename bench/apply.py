"""A whole `memtopo apply`, compared with bare_apply.py, which makes the same calls without any check.

Both are whole processes, cold, from bytecode: a small layout, and one of 30,720 chunks on each GPU with the fast check.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench import processes
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import resolve

ROOT = Path(__file__).parent.parent
ROUNDS = 5
SMALL, MANY = 8, 30_720
"""Chunks of each GPU."""
LARGEST_SMALL, LARGEST_MANY, LARGEST_MEMORY = 2.0, 1.25, 150


def main() -> None:
    """Print the times and the largest memory of both for each layout, and the median ratio of the pairs."""
    try:
        devices = resolve("local").machine.devices
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    gpus = min(2, len(devices))
    print(f"{gpus} x {devices[0].name}, whole processes, {ROUNDS} alternating rounds")
    with tempfile.TemporaryDirectory() as folder:
        environment = processes.with_bytecode(Path(folder) / "bytecode")
        _compare("small", gpus, SMALL, Path(folder), environment, LARGEST_SMALL)
        _compare("many", gpus, MANY, Path(folder), environment, LARGEST_MANY)


def _compare(name: str, gpus: int, chunks: int, folder: Path, environment: Mapping[str, str], largest: float) -> None:
    spec = folder / f"{name}.yaml"
    spec.write_text(_spec(gpus, chunks))
    bare = [sys.executable, "bench/bare_apply.py", str(gpus), str(chunks)]
    ours = [sys.executable, "-m", "memtopo", "apply", str(spec), "--machine", "local"]
    rounds = [(_took(bare, environment), _took(ours, environment)) for _ in range(ROUNDS + 1)][1:]
    ratio = statistics.median(mine[0] / plain[0] for plain, mine in rounds)
    memory = statistics.median(mine[1] - plain[1] for plain, mine in rounds)
    for label, index in (("bare calls", 0), ("memtopo", 1)):
        took, peak = (statistics.median(each[index][value] for each in rounds) for value in (0, 1))
        print(f"{name:6} {gpus * chunks:6,} chunks  {label:11} {took:7.3f} s  {peak:6.0f} MiB at most")
    print(f"{name:6} ratio, median of the pairs   {ratio:6.2f}   (at most {largest})")
    print(f"{name:6} memory beside the bare calls {memory:6.0f} MiB   (at most {LARGEST_MEMORY})")


def _spec(gpus: int, chunks: int) -> str:
    ranges = ", ".join(f"r{gpu}: {{size: {chunks * 2}MiB}}" for gpu in range(gpus))
    pages = ", ".join(f"c{gpu}: {{location: gpu{gpu}, size: 2MiB, count: {chunks}}}" for gpu in range(gpus))
    filled = ", ".join(f"r{gpu}: [c{gpu}]" for gpu in range(gpus))
    grants = ", ".join(f"gpu{gpu}: rw" for gpu in range(gpus))
    access = ", ".join(f"r{gpu}: {{{grants}}}" for gpu in range(gpus))
    return (
        f"memtopo: 1\nname: bench\nranges: {{{ranges}}}\nchunks: {{{pages}}}\nmap: {{{filled}}}\naccess: {{{access}}}\n"
    )


def _took(command: list[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds that a command takes, and its largest memory in MiB; its output is discarded."""
    start = time.perf_counter()
    pid = os.posix_spawn(
        command[0],
        command,
        environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(pid, 0)
    took = time.perf_counter() - start
    assert os.waitstatus_to_exitcode(status) == 0, command
    return took, used.ru_maxrss / 1024
