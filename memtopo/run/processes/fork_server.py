"""The process that forks workers, which imports what they need once, before any driver is initialised.

`main` runs in that process; the conductor has it as a `WorkerServer`.

The imports of a worker take a third of a second of processor time, a fork some milliseconds; it is safe before `cuInit`
(fact 33). The server has one thread and opens no driver. It is the parent of the workers: they end with it, and it ends
with the conductor, for which it waits for them.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import get_args

from msgspec import Struct

from memtopo.common.decoding import decoder
from memtopo.common.processes import die_with_parent, inherited_socket, is_stopped, python_command, spawn
from memtopo.driver.handles import Handle
from memtopo.kinds import KINDS
from memtopo.run import messages
from memtopo.sharing.channel import Channel, Child, Envelope


class Fork(Struct, frozen=True):
    """Request for a worker with variables and with the descriptors beside the message; answered by its process id."""

    environment: dict[str, str]


class AwaitEnd(Struct, frozen=True):
    """Request for the exit status of a worker, which is killed after so many seconds."""

    pid: int
    seconds: float


class Answer(Struct, frozen=True):
    """Process id of a worker, or the negative number of the error of its fork, or its exit status."""

    number: int


def main(driver: str, descriptor: str) -> None:
    """Answer requests until the other end is closed: the process id of a new worker, or the status of an old one.

    `driver` is the module of the workers' driver. A fork that fails is answered with its negative error number. In a
    worker, return once its work is done.
    """
    from memtopo.run.processes import worker  # noqa: PLC0415 the conductor, which starts a server, needs none of it

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as sent to all processes of a service, which the conductor ends
    channel: Channel[Fork | AwaitEnd] = Channel(inherited_socket(descriptor), (Fork, AwaitEnd))
    server = os.getpid()
    _prepare(driver)
    for received in channel:
        match received.message:
            case AwaitEnd(pid, seconds):
                channel.send(Answer(end_of(pid, seconds)))
            case Fork(environment):
                if pid := _fork():
                    received.close()
                    channel.send(Answer(pid))
                    continue
                channel.close()
                die_with_parent(server)
                os.environ.update(environment)
                worker.main(*(str(handle.fd) for handle in received.handles))
                return
    channel.close()  # the conductor kills this process, which may be at its end by then


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
        self.child: Child[Answer] | None = None

    def start(
        self, descriptors: Sequence[int], environment: Mapping[str, str], command: Sequence[str] = ()
    ) -> ForkedWorker | SpawnedWorker:
        """Fork a worker that gets descriptors and variables of its own, or spawn a `command`. Raises `OSError`."""
        if command:
            words, variables = [*command, *map(str, descriptors)], {**self._environment, **environment}
            return SpawnedWorker(spawn(words, stderr=self._stderr, descriptors=descriptors, environment=variables))
        if self.child is None:
            command = (*python_command(_SERVER, parent=os.getpid()), self._driver)
            self.child = Child(command, (Answer,), stderr=self._stderr, environment=self._environment)
        pid = self.request(Fork(dict(environment)), [Handle(fd=os.dup(fd)) for fd in descriptors])
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return ForkedWorker(pid, self)

    def request(self, request: Fork | AwaitEnd, handles: Sequence[Handle] = (), limit: float = _LIMIT) -> int:
        """Send a request, and return its answer. Raises `OSError`, of which `TimeoutError` if there is none in time."""
        if self.child:
            self.child.channel.send(request, handles)
            until = time.monotonic() + limit
            while not self.child.channel.wait(max(min(_STEP, until - time.monotonic()), 0.001)):
                if is_stopped(self.child.process.pid):
                    raise TimeoutError(errno.ETIMEDOUT, "the process that starts them is stopped")
                if time.monotonic() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, "the process that starts them does not answer")
            if received := self.child.channel.receive():
                return received.message.number
        raise OSError(errno.ECHILD, "the process that starts them has ended")

    def close(self) -> None:
        """End the server, and with it the workers that have not been waited for."""
        if self.child:
            self.child.end()  # its imports may take long
            self.child = None


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
            return self._server.request(AwaitEnd(self.pid, seconds), limit=seconds + _LIMIT)
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
