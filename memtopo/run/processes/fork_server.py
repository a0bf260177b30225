"""The process that forks workers, which imports what they need once, before any driver is initialised.

`main` runs in that process; the conductor has it as a `WorkerServer`.

The imports of a worker take a third of a second of processor time, a fork some milliseconds; it is safe before `cuInit`
(fact 33). The server has one thread and opens no driver. It is the parent of the workers: they end with it, and it ends
with the conductor, for which it waits for them.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from memtopo.common.decoding import decoder
from memtopo.common.processes import (
    die_with_parent,
    inherited_socket,
    is_stopped,
    python_command,
    spawn,
    spawn_connected,
)
from memtopo.kinds import KINDS
from memtopo.run import messages
from memtopo.sharing.channel import Envelope

_LARGEST, _MOST_DESCRIPTORS = 64 << 10, 16
"""Bytes of a request, and descriptors beside it."""


def main(driver: str, descriptor: str) -> None:
    """Answer requests until the other end is closed: the process id of a new worker, or the status of an old one.

    `driver` is the module of the workers' driver. A fork that fails is answered with its negative error number. In a
    worker, return once its work is done.
    """
    from memtopo.run.processes import worker  # noqa: PLC0415 the conductor, which starts a server, needs none of it

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as sent to all processes of a service, which the conductor ends
    sock, server = inherited_socket(descriptor), os.getpid()
    _prepare(driver)
    while (received := socket.recv_fds(sock, _LARGEST, _MOST_DESCRIPTORS))[0]:
        request, descriptors = json.loads(received[0]), received[1]
        answer = end_of(request["ended"], request["seconds"]) if "ended" in request else _fork()
        if answer == 0 and os.getpid() != server:
            sock.close()
            die_with_parent(server)
            os.environ.update(request["environment"])
            worker.main(*map(str, descriptors))
            return
        for fd in descriptors:
            os.close(fd)
        sock.send(answer.to_bytes(4, "little", signed=True))
    sock.close()  # the conductor kills this process, which may be at its end by then


def _prepare(driver: str) -> None:
    """Import and build what workers need later: their driver, the steps of all kinds, and the decoders of messages."""
    for module in (driver, *(f"{kind.__module__}.steps" for kind in KINDS)):
        with suppress(ImportError):  # the worker says what is missing
            import_module(module)
    for message in (Envelope, *get_args(messages.ToWorker), *get_args(messages.FromWorker)):
        decoder(message)
    gc.freeze()  # at its end, each worker would look for cycles in all of it


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or 1)


_SERVER = "memtopo.run.processes.fork_server:main"
_LIMIT = 60.0
"""Seconds that a server has for its imports and a fork, and beyond those of a worker for its end."""

_STEP = 2.0
"""Seconds without an answer after which a server that is stopped is given up."""

_POLL_INTERVAL = 0.01


class WorkerServer:
    """A process that forks workers (`fork_server`), started for the first one and ended by `close`.

    It imports `driver`, the module of the workers' driver, which it does not initialise (fact 33). `environment` is
    added to that of this process, and `stderr` is the descriptor of the file for the standard error of the workers, or
    None for that of this process.
    """

    def __init__(self, driver: str, environment: Mapping[str, str], stderr: int | None = None) -> None:
        self._driver, self._environment, self._stderr = driver, environment, stderr
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def start(
        self, descriptors: Sequence[int], environment: Mapping[str, str], command: Sequence[str] = ()
    ) -> ForkedWorker | SpawnedWorker:
        """Fork a worker that gets descriptors and variables of its own, or spawn a `command`. Raises `OSError`."""
        if command:
            words, variables = [*command, *map(str, descriptors)], {**self._environment, **environment}
            return SpawnedWorker(spawn(words, stderr=self._stderr, descriptors=descriptors, environment=variables))
        if self._started is None:
            command = (*python_command(_SERVER, parent=os.getpid()), self._driver)
            self._started = spawn_connected(command, stderr=self._stderr, environment=self._environment)
        pid = self.request({"environment": dict(environment)}, descriptors)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return ForkedWorker(pid, self)

    def request(self, request: Mapping[str, Any], descriptors: Sequence[int] = (), limit: float = _LIMIT) -> int:
        """Send a request, and return its answer. Raises `OSError`."""
        if self._started:
            process, sock = self._started
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(sock, [json.dumps(request).encode()], descriptors)
                if answer := _answer(sock, process.pid, limit):
                    return int.from_bytes(answer, "little", signed=True)
        raise OSError(errno.ECHILD, "the process that starts them has ended")

    def close(self) -> None:
        """End the server, and with it the workers that have not been waited for."""
        if self._started:
            process, sock = self._started
            sock.close()
            process.kill()  # its imports may take long
            process.wait()
            self._started = None


def _answer(sock: socket.socket, pid: int, limit: float) -> bytes:
    """Answer of a server. Raises `TimeoutError` if it gives none in time, or is stopped."""
    until = time.monotonic() + limit
    while True:
        sock.settimeout(max(min(_STEP, until - time.monotonic()), 0.001))
        try:
            return sock.recv(4)
        except TimeoutError:
            if is_stopped(pid):
                raise TimeoutError(errno.ETIMEDOUT, "the process that starts them is stopped") from None
            if time.monotonic() >= until:
                raise


class _StartedWorker:
    """A worker that memtopo has started."""

    pid: int

    def signal(self, number: signal.Signals) -> bool:
        # Not Popen.send_signal, which may reap the process; from then on its id may be reused.
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return True


class ForkedWorker(_StartedWorker):
    """A worker that a server has forked, which waits for it."""

    def __init__(self, pid: int, server: WorkerServer) -> None:
        self.pid, self._server = pid, server

    def end(self, seconds: float) -> int:
        """Exit status as of `end_of`, once; that of a killed worker if the server is gone."""
        with suppress(OSError):
            return self._server.request({"ended": self.pid, "seconds": seconds}, limit=seconds + _LIMIT)
        return -signal.SIGKILL


class SpawnedWorker(_StartedWorker):
    """A worker that is a program of its own, and a child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self.process = process.pid, process

    def end(self, seconds: float) -> int:
        """Exit status as of `end_of`."""
        self.process.returncode = end_of(self.pid, seconds)
        return self.process.returncode


def end_of(pid: int, seconds: float) -> int:
    """Exit status of a child, which is killed after so many seconds: the negative number of a signal that ended it."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            break
        time.sleep(_POLL_INTERVAL)
    # The driver leaves them behind for a killed process with interprocess events (fact 49); its id is not reused yet.
    for file in Path("/dev/shm").glob(f"cuda.shm.{os.geteuid():x}.{pid:x}.*"):  # noqa: S108 the driver's choice
        file.unlink(missing_ok=True)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
