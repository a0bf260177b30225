"""The process that forks workers (`fork_server`), as the conductor has it, and the workers that it has forked."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence

from memtopo.common.spawn import python_command, spawn_connected

_SERVER = "memtopo.run.processes.fork_server:main"
_LIMIT = 60.0
"""Seconds that a server has for its imports and a fork."""

_READ_LATE = ("CUDA_VISIBLE_DEVICES",)
"""Environment variables that the driver reads when it is initialised; the interpreter and libraries read others."""


class ForkedWorker:
    """A worker that a server has forked, as a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self) -> int:
        """Wait for its end, and return its exit status: the negative number of a signal that killed it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


class WorkerServer:
    """A process that forks workers (`fork_server`), started for the first one and ended by `close`.

    It imports `driver`, the module of the workers' driver, which it does not initialise (fact 33). `stderr` is the
    descriptor of the file for their standard error, or None for that of this process.
    """

    def __init__(self, driver: str, stderr: int | None = None) -> None:
        self._driver, self._stderr = driver, stderr
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._environment: dict[str, str] = {}

    def fork(self, descriptors: Sequence[int], environment: Mapping[str, str]) -> ForkedWorker | None:
        """Fork a worker that gets descriptors; None if the server cannot, or an interpreter has to read variables."""
        common = {name: value for name, value in environment.items() if name not in _READ_LATE}
        if self._started is None:
            command = python_command(_SERVER, parent=os.getpid())
            self._started, self._environment = spawn_connected(command, stderr=self._stderr, environment=common), common
        process, sock = self._started
        request = {"parent": os.getpid(), "environment": dict(environment), "driver": self._driver}
        if common != self._environment or process.poll() is not None:
            return None
        try:
            socket.send_fds(sock, [json.dumps(request).encode()], descriptors)
            sock.settimeout(_LIMIT)
            pid = int.from_bytes(sock.recv(4), "little", signed=True)
        except OSError:
            process.kill()  # it forks nothing later
            return None
        return ForkedWorker(pid) if pid > 0 else None

    def close(self) -> None:
        """End the server; the workers stay."""
        if self._started:
            process, sock = self._started
            sock.close()
            process.wait()
            self._started = None
