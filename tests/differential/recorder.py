"""Recording: workers that generate and make calls, each with a file; one that dies or hangs is replaced."""

from __future__ import annotations

import lzma
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.differential.traces import END, Origin
from tests.differential.worker import DIRTY, UNAVAILABLE
from tests.helpers.python_process import PythonProcess, run_python

PATIENCE = 20.0
"""Seconds without a new byte after which a worker hangs; the first contexts may take several."""
_STEP = 0.25
ENDLESS = 1 << 30


class Order(NamedTuple):
    """Recording: a driver (`gpu`, or a machine to simulate), family, a time, and the first seed of each worker."""

    driver: str
    family: str
    seconds: float
    first: int
    most: int = ENDLESS


class Recorded(NamedTuple):
    """Sequences and calls in a file, and processes that ended early, by cause."""

    sequences: int
    calls: int
    ended: tuple[str, ...]


def record(order: Order, origin: Origin, workers: int, out: Path) -> Recorded:
    """Record by several workers into one compressed file, `out`."""
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(lambda number: _record_part(order, number, workers, out), range(workers)))
    with out.open("wb") as whole:
        whole.write(lzma.compress(str(origin).encode()))
        for compressed, _ in parts:
            whole.write(compressed)
    totals = [part for _, part in parts]
    ended = tuple(cause for part in totals for cause in part.ended)
    return Recorded(sum(part.sequences for part in totals), sum(part.calls for part in totals), ended)


def _record_part(order: Order, number: int, workers: int, out: Path) -> tuple[bytes, Recorded]:
    """Record by one worker after another; returns its part of the file, compressed."""
    path = out.with_suffix(f".{number}")
    path.unlink(missing_ok=True)
    path.touch()
    end, ended, done = time.monotonic() + order.seconds, [], 0
    while time.monotonic() < end and done < order.most:
        first = order.first + number + done * workers
        cause = _run_worker(order, path, first, workers, end - time.monotonic(), order.most - done)
        done = path.read_bytes().count(b"# ")
        if not cause:
            break
        ended.append(cause)
        if cause == str(UNAVAILABLE):
            break
        if cause != str(DIRTY):
            note_death(path, cause)
    text = path.read_bytes()
    path.unlink()
    compressed = _compress(text)
    return compressed, Recorded(done, text.count(b" -> "), tuple(ended))


def note_death(path: Path, cause: str) -> None:
    """Add a death as the answer to the call that was made last, or to the end of its sequence."""
    text = path.read_bytes()
    with path.open("a") as file:
        if text:
            file.write(f"{END} -> died {cause}\n" if text.endswith(b"\n") else f"died {cause}\n")


def _compress(text: bytes) -> bytes:
    """Compress in a process of its own: the workers of other parts may still be recording."""
    program = "import sys, lzma; sys.stdout.buffer.write(lzma.compress(sys.stdin.buffer.read(), preset=4))"
    compressed: bytes = run_python([sys.executable, "-c", program], input=text, capture_output=True, check=True).stdout
    return compressed


def _ended(process: PythonProcess) -> bool:
    """Wait for a short time; return whether the process has ended."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STEP)
    return process.returncode is not None


def _run_worker(order: Order, path: Path, first: int, step: int, seconds: float, most: int) -> str:
    """Run one worker to its end; returns why it ended early, or an empty text."""
    options = (order.driver, order.family, path, first, step, seconds, most)
    process = PythonProcess([sys.executable, "-m", "tests.differential.worker", *map(str, options)])
    size, changed = path.stat().st_size, time.monotonic()
    while not _ended(process):
        if path.stat().st_size != size:
            size, changed = path.stat().st_size, time.monotonic()
        elif time.monotonic() > changed + PATIENCE:
            process.kill()
            process.wait()
            return "HANG"
    status = process.returncode
    return signal.Signals(-status).name if status < 0 else str(status) if status else ""
