"""Runs of a spec in which a process receives a signal before a driver call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from memtopo.plans.report import Report

TIMEOUT = 2.0
"""Seconds of silence after which a process counts as dead in these tests."""

GRACE = 5.0
"""Seconds beyond the timeout within which all processes end."""

_COORDINATOR = str(Path(__file__).with_name("coordinator_program.py"))


@dataclass(frozen=True)
class CrashRun:
    """Report, unless the coordinator died, its exit status, the seconds of the run, and its standard error."""

    report: Report | None
    status: int
    seconds: float
    errors: str


def run_with_crash(
    spec: Path, process: str, call: int | str, name: str, victim: str = "self", machine: str = "h200x2", *arguments: str
) -> CrashRun:
    """Run a spec, and send a signal to a process or its parent before the process's n-th driver call, or `method#n`.

    `arguments` are further ones of the coordinator's program.
    """
    marker = f"MEMTOPO_RUN={os.getpid()}-{time.monotonic_ns()}"
    variables = {"MEMTOPO_RUN": marker.partition("=")[2], "MEMTOPO_CRASH": f"{process}:{call}:{name}:{victim}"}
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, _COORDINATOR, str(spec), machine, str(TIMEOUT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    ) as coordinator:
        if victim == "parent" and name == "SIGSTOP":
            os.waitid(os.P_PID, coordinator.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert not wait_for_none(marker, but=coordinator.pid), "workers of a stopped coordinator"
            coordinator.kill()
        out, errors = coordinator.communicate(timeout=120)
    seconds = time.monotonic() - start
    assert not wait_for_none(marker), "processes are left"
    report = TypeAdapter(Report).validate_json(out) if out else None
    return CrashRun(report, coordinator.returncode, seconds, errors.decode())


def wait_for_none(marker: str, but: int = 0) -> list[int]:
    """Processes of a run that are left after the time they may take."""
    until = time.monotonic() + 2 * TIMEOUT + GRACE + 60.0 * bool(but)
    while (left := [pid for pid in marked(marker) if pid != but]) and time.monotonic() < until:
        os.sched_yield()
    return left


def marked(marker: str) -> list[int]:
    """Processes, running or stopped, with a variable in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if marker.encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found
