"""Sequences of given calls, each in a process of its own with a driver of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.differential.calls import compiled
from tests.differential.resource_calls import needs_of
from tests.differential.resources import Surroundings
from tests.differential.worker import open_driver, retained, simulated
from tests.helpers.python_process import run_python

PATIENCE = 30.0
"""Seconds after which a process hangs."""


def answers(driver: str, calls: Sequence[str]) -> list[str]:
    """Answers to the calls of one sequence in a fresh process; the last one is `died` if the process ended of it."""
    program = [sys.executable, "-m", "tests.differential.runner", driver]
    try:
        done = run_python(
            program, input="\n".join(calls), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as late:
        return [*_lines(late.stdout), "died HANG"]
    found: list[str] = done.stdout.splitlines()
    if done.returncode < 0:
        return [*found, f"died {signal.Signals(-done.returncode).name}"]
    if len(found) != len(calls):
        raise RuntimeError(f"a runner on {driver} ended with {done.returncode}: {done.stderr[-500:]}")
    return found


def all_answers(driver: str, sequences: Iterable[Sequence[str]], workers: int) -> list[list[str]]:
    """Answers to several sequences, several at a time."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda calls: answers(driver, calls), sequences))


def _lines(text: bytes | str | None) -> list[str]:
    return (text.decode() if isinstance(text, bytes) else text or "").splitlines()


def main(driver: str) -> None:
    """Make the calls of standard input; print an answer for each."""
    opened, lines = open_driver(driver), sys.stdin.read().splitlines()
    with Surroundings(simulated(driver)) as surroundings:
        session = surroundings.session(opened, retained(opened), needs_of(lines))
        for line in lines:
            print(compiled(line)(session), flush=True)
        session.close()


if __name__ == "__main__":
    main(sys.argv[1])
