"""Facts of processes in /proc: state, parent and start, and the namespace of their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_FIRST_PIDS = 0xEFFFFFFC
"""Pid namespace of the system itself: the kernel gives it this number (PROC_PID_INIT_INO)."""

_FLAGS, _START = 4, 17
"""Fields of `stat` after the parent."""

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD."""


class ProcessStat(NamedTuple):
    """A process: its name of at most 15 bytes, its state, its parent, and its start in ticks since boot."""

    command: str
    state: str
    parent: int
    start: int
    is_kernel_thread: bool


def process_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Return the facts of a process; None if there is none, or if it has ended, also as a zombie."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in brackets, and may contain brackets and blanks.
    before, _, after = text.rpartition(")")
    state, parent, *rest = after.split()
    if state in "ZX":
        return None
    kernel = bool(int(rest[_FLAGS]) & _KERNEL_THREAD)
    return ProcessStat(before.partition("(")[2], state, int(parent), int(rest[_START]), kernel)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped: by SIGSTOP or Ctrl-Z, or in a debugger."""
    found = process_stat(pid)
    return found is not None and found.state in "Tt"


def is_unmapped(uid: int, proc: Path = PROC) -> bool:
    """Return whether a uid is the one that the kernel reports for all users without a number in this user namespace."""
    try:
        return uid == int((proc / "sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def pid_namespace(proc: Path = PROC) -> int | None:
    """Return the number of this process's pid namespace; None if it is unknown."""
    try:
        return (proc / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def in_pid_namespace(proc: Path = PROC) -> bool:
    """Return whether this process is in a pid namespace of its own, as in a container."""
    return pid_namespace(proc) not in (None, _FIRST_PIDS)
