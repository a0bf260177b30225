"""Gates between processes that take down together, and that the death of a process does not block.

A gate is a pipe that every process holds open; its read end reports the end of file once all have closed their write
ends. The system closes those of a process that dies. For a process that is stopped, the others wait until a deadline.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memtopo.common.processes import RunningClock
from memtopo.executor import TeardownGates
from memtopo.sharing.sockets import SYSTEM, System, wait_readable

_INTERVAL = 0.2
"""Seconds between two heartbeats while waiting at a gate."""


class Gate:
    """One process's ends of the pipe."""

    def __init__(self, read: int, write: int, system: System = SYSTEM) -> None:
        self._read, self._write, self._system = read, write, system
        self._closed = False

    def fileno(self) -> int:
        """Descriptor that is readable when all others have left."""
        return self._read

    def leave(self) -> None:
        """Close this process's write end; a second call does nothing."""
        # Replaced by a duplicate of the read end: the count of open descriptors, which shows leaks, is unchanged.
        if not self._closed:
            os.dup2(self._read, self._write, inheritable=False)

    def wait(self, seconds: float) -> bool:
        """Leave, and wait until all other processes have; false after so many seconds."""
        self.leave()
        return self._closed or self._system.wait((self,), seconds)

    def close(self) -> None:
        """Close both ends; a second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self._write)
            os.close(self._read)


@contextmanager
def gate_descriptors() -> Iterator[tuple[int, int, int, int]]:
    """Read and write ends of the two gates of a teardown, to be inherited by the workers; closed here at the end."""
    ends = (*os.pipe2(os.O_CLOEXEC), *os.pipe2(os.O_CLOEXEC))
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


class SplitGate:
    """A conductor's ends of a gate of two pipes, by which its workers wait for processes elsewhere, too.

    Its workers hold the write end of the one, whose end of file reports that all have left, and wait for the end of
    the other, which `open` closes. If the conductor dies, the system does, and they go on by themselves.
    """

    def __init__(self) -> None:
        self._left, left = os.pipe2(os.O_CLOEXEC)
        wait, self._hold = os.pipe2(os.O_CLOEXEC)
        self.ends = wait, left
        """Ends that the workers inherit, as those of a `Gate`; `inherited` closes them here."""
        self.reported = False
        self.opened = False

    def inherited(self) -> None:
        """Close the ends of the workers once all have been started."""
        for end in self.ends:
            os.close(end)

    def fileno(self) -> int:
        """Descriptor that is readable when all workers have left."""
        return self._left

    def all_left(self) -> bool:
        """Return whether all workers have left or ended."""
        return bool(wait_readable([self], 0.0))

    def open(self) -> None:
        """Let the workers go on; a second call does nothing."""
        if not self.opened:
            self.opened = True
            os.close(self._hold)

    def close(self) -> None:
        """Close the conductor's ends, once no worker is left."""
        self.open()
        os.close(self._left)


class WorkerGates(TeardownGates):
    """Gates of the teardown with the other workers, each of which has `timeout` seconds to reach a gate.

    After one of them was late at the first gate, the second one is not waited for. `imports_gate` is before the first
    memory is released that another process may use. `alive` is called while this process waits.
    """

    def __init__(
        self, imports_gate: Gate, all_gate: Gate, timeout: float, alive: Callable[[int], None], system: System = SYSTEM
    ) -> None:
        self._imports_gate, self._all_gate, self._left, self._alive = imports_gate, all_gate, timeout, alive
        self._system = system

    def imports_released(self) -> bool:
        return self._wait(self._imports_gate)

    def all_released(self) -> bool:
        return self._wait(self._all_gate)

    def _wait(self, gate: Gate) -> bool:
        clock = RunningClock(self._system.now)
        while not gate.wait(_INTERVAL):
            self._alive(0)
            if clock.time() > self._left:
                self._left = 0.0
                return False
        return True
