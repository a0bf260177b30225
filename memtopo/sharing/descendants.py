"""Processes that a program started, found by an entry of their environment, and the watcher that kills them.

The system sends a program SIGTERM when its parent is killed, but nothing to the processes that it started. The watcher
is a process of its own, which waits for the end of the parent and then kills what is left. It imports no more than it
needs: one runs beside each program.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from memtopo.common.clock import RunningClock
from memtopo.common.spawn import python_command

_EXIT = 10.0
"""Seconds that a watcher has to end."""

_INTERVAL = 0.01
_COMMAND = python_command("memtopo.sharing.descendants:main")


def kill_all(entry: str, seconds: float) -> None:
    """Kill all processes that have an entry in their environment, `NAME=VALUE`, until none is left or time is over."""
    clock = RunningClock()
    while clock.time() < seconds:
        found = list(_processes_with(os.fsencode(entry)))
        if not found:
            return
        for descriptor in found:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        time.sleep(_INTERVAL)


def start_watcher(program: int, entry: str, grace: float) -> subprocess.Popen[bytes]:
    """Start a process that kills all processes with an entry once this one has died, until `end_watcher`.

    The program has `grace` seconds to end by itself. Raises `OSError`.
    """
    return subprocess.Popen(  # noqa: S603 a command of memtopo, and no shell
        [*_COMMAND, str(os.getpid()), str(program), entry, str(grace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C ends the parent, which ends the watcher
    )


def end_watcher(watcher: subprocess.Popen[bytes]) -> None:
    """Have a watcher end, and wait for that; not by a signal, which this process may not be permitted to send."""
    with suppress(subprocess.TimeoutExpired):  # it is stopped
        watcher.communicate(b"\n", _EXIT)


def main(parent: str, program: str, entry: str, grace: str) -> None:
    """Wait for the death of the parent and the end of the program, within the grace, and kill what is left."""
    if _is_dismissed(int(parent)):
        return
    _await_end(int(program), float(grace))
    kill_all(entry, float(grace))


def _is_dismissed(parent: int) -> bool:
    """Wait until the parent writes to standard input, or until it has died; return whether it wrote."""
    try:
        descriptor = os.pidfd_open(parent)  # a child of the parent may keep the other end of standard input open
    except ProcessLookupError:
        return False
    ready, _, _ = select.select([0, descriptor], [], [])
    return 0 in ready and os.read(0, 1) != b""


def _await_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended, for at most so many seconds."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        select.select([descriptor], [], [], seconds)
        os.close(descriptor)


def _processes_with(entry: bytes) -> Iterator[int]:
    """Yield a descriptor of each process that has an entry in its environment; the caller closes it."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or belongs to another user
            descriptor = os.pidfd_open(int(name))  # before the environment is read: the id may be another's afterwards
            try:
                environment = Path("/proc", name, "environ").read_bytes()
            except OSError:
                environment = b""
            if entry in environment.split(b"\0"):
                yield descriptor
            else:
                os.close(descriptor)


if __name__ == "__main__":
    main(*sys.argv[1:])
