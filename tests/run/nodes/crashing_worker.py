"""A worker that sends SIGKILL or another signal to an actor of its run before one of its driver calls.

Arguments before the usual ones: JSON with `process`, `call` (`mem_map#1`: a method and the number of its call),
`signal`, and `victim` (worker, agent, raylet, hub or driver); and the driver's process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from memtopo.driver.protocol import Driver
from memtopo.run.processes.worker import main
from tests.run.processes.signalled_worker import SignalAtCall

CRASH, DRIVER = json.loads(sys.argv[1]), int(sys.argv[2])


def victim() -> int:
    agent = os.getppid()
    match CRASH["victim"]:
        case "agent":
            return agent
        case "raylet":
            return parent(agent)
        case "hub":
            return hub(session(agent))
        case "driver":
            return DRIVER
    return os.getpid()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def hub(of: str) -> int:
    """The process of the hub in a session of Ray."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    titled = [pid for pid in pids if title(pid).startswith(b"ray::Hub")]
    return next(pid for pid in titled if session(pid) == of)


def title(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def session(pid: int) -> str:
    """The folder of the session of Ray in which a process writes its log."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        path = str(fd.readlink())
        if "/session_" in path:
            return path.partition("/session_")[2].partition("/")[0]
    return ""


def wrap(process: str, driver: Driver) -> Any:
    if process != CRASH["process"]:
        return driver
    method, _, number = CRASH["call"].partition("#")
    return SignalAtCall(driver, int(number), signal.Signals[CRASH["signal"]], victim(), method)


if __name__ == "__main__":
    main(*sys.argv[3:], wrap=wrap)
