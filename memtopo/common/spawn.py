"""Child processes of memtopo: spawned, never forked from a process that has a driver (fact 33)."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import IO

_ROOT = str(Path(__file__).parents[2])
_PR_SET_PDEATHSIG = 1
_END_WITH = (
    f"import ctypes, os; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0); "
    "os.getppid() == {} or os._exit(1)"
)
"""Beginning of a program that ends with its parent: imports take seconds on a busy machine."""

Stream = int | IO[bytes] | None


def python_command(entry: str, parent: int = 0) -> tuple[str, ...]:
    """Command that calls a function of memtopo, `package.module:function`, with the arguments appended to the command.

    The package is imported from where this process imported it; the working directory is not on the path. With the id
    of its `parent`, the process is killed when the parent dies, from before its imports on until the function changes
    that, and does nothing if the parent has died already.
    """
    module, _, function = entry.partition(":")
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import {function}; {function}(*sys.argv[1:])"
    return (sys.executable, "-P", "-c", f"{_END_WITH.format(parent)}; {code}" if parent else code)


def spawn(
    command: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = None,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that inherits `descriptors`; `environment` is added to that of this process.

    Without further arguments its standard error is this process's, and it has no standard input or output. Raises
    `OSError`.
    """
    return Popen(  # noqa: S603 a command of memtopo or of a caller, and no shell
        list(command),
        pass_fds=descriptors,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **(environment or {})},
        start_new_session=new_session,
    )


def spawn_connected(
    command: Sequence[str],
    *,
    stderr: Stream = None,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process at the other end of a SOCK_SEQPACKET socket; arguments as for `spawn`.

    The number of its end and those of `descriptors` are appended to the command. Raises `OSError`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        inherited = (theirs.fileno(), *descriptors)
        try:
            process = spawn(
                [*command, *map(str, inherited)], stderr=stderr, descriptors=inherited, environment=environment
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def start_hint(error: OSError) -> str | None:
    """Return how to raise the limit because of which a process was not started; None for other errors."""
    if error.errno != errno.EAGAIN:
        return None
    return "raise the limit of processes: 'ulimit -u', TasksMax= in a systemd unit, --pids-limit of a container"


class ParentThread(threading.Thread):
    """Thread that starts a process and lives until `finish`.

    The system sends a parent-death signal when the thread that started the process ends. In a main thread, which ends
    with its process, the process is started directly.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        super().__init__(name="memtopo-parent", daemon=True)
        self._start_process = start
        self._process: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None
        self._ready, self._over = threading.Event(), threading.Event()

    def start_process(self) -> subprocess.Popen[bytes]:
        """Start the process. Raises the errors of its start, and `OSError` if there can be no thread."""
        if threading.current_thread() is threading.main_thread():
            return self._start_process()
        try:
            self.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread can be started") from error
        self._ready.wait()
        if self._process is None:
            raise self._error or OSError(errno.ECHILD, "it was not started")
        return self._process

    def run(self) -> None:
        try:
            self._process = self._start_process()
        except BaseException as error:  # noqa: BLE001 raised by start_process
            self._error = error
            return
        finally:
            self._ready.set()
        self._over.wait()

    def finish(self) -> None:
        """End the thread."""
        self._over.set()
        if self.is_alive():
            self.join()


def inherited_socket(descriptor: str) -> socket.socket:
    """Socket from `spawn_connected` in the process that it started; not inherited any further."""
    sock = socket.socket(fileno=int(descriptor))
    sock.set_inheritable(False)
    return sock


def signal_on_parent_death(number: int, parent: int | None = None) -> bool:
    """Have the system send a signal to this process when its parent dies; false if it has died already.

    `parent` is its process id, if that was taken before this process began.
    """
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent dies; end it now if the parent has died already."""
    if not signal_on_parent_death(signal.SIGKILL, parent):
        os._exit(1)


def memory_file(data: bytes) -> int:
    """Descriptor of a new file in memory, positioned at its beginning; the caller closes it."""
    fd = os.memfd_create("memtopo", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
