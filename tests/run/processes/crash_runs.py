"""Runs of a spec in which a process receives a signal before a driver call."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memtopo.common.decoding import decode
from memtopo.plans.report import Report
from tests.helpers.python_process import PythonProcess

TIMEOUT = 2.0
"""Seconds of silence after which a process counts as dead in these tests."""

GRACE = 5.0
"""Seconds beyond the timeout within which all processes end."""

_CONDUCTOR = str(Path(__file__).with_name("conductor_program.py"))


@dataclass(frozen=True)
class CrashRun:
    """Report, unless the conductor died, its exit status, the seconds of the run, and its standard error."""

    report: Report | None
    status: int
    seconds: float
    errors: str


def run_with_crash(
    spec: Path, process: str, call: int | str, name: str, victim: str = "self", machine: str = "h200x2", *arguments: str
) -> CrashRun:
    """Run a spec, and send a signal to a process or its parent before the process's n-th driver call, or `method#n`.

    `arguments` are further ones of the conductor's program.
    """
    start = time.monotonic()
    with PythonProcess(
        [sys.executable, _CONDUCTOR, str(spec), machine, str(TIMEOUT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"MEMTOPO_CRASH": f"{process}:{call}:{name}:{victim}"},
        start_new_session=True,
    ) as conductor:
        if victim == "parent" and name == "SIGSTOP":
            os.waitid(os.P_PID, conductor.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert not wait_for_none(conductor.pid, but=conductor.pid), "workers of a stopped conductor"
            conductor.kill()
        out, errors = conductor.communicate(timeout=120)
    seconds = time.monotonic() - start
    assert not wait_for_none(conductor.pid), "processes are left"
    report = decode(out, Report) if out else None
    return CrashRun(report, conductor.returncode, seconds, errors.decode())


def wait_for_none(session: int, but: int = 0) -> list[int]:
    """Processes of a run that are left after the time they may take."""
    until = time.monotonic() + 2 * TIMEOUT + GRACE + 60.0 * bool(but)
    while left := [pid for pid in members(session) if pid != but]:
        if not has_ended(left[0], until - time.monotonic()):
            break
    return left


def members(session: int) -> list[int]:
    """Processes of a session, running or stopped."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError):
            if os.getsid(int(entry)) == session and not has_ended(int(entry), 0.0):
                found.append(int(entry))
    return found


def has_ended(pid: int, seconds: float) -> bool:
    """Wait so long for the end of a process, and return whether it has ended; its parent may not have waited for it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], max(seconds, 0.0))[0])
    finally:
        os.close(descriptor)
