"""Programs that serve at a socket in a private folder: start, wait for service, and end with all that they started."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Self

from memtopo.common.errors import Failed, Stopped, on_failure, reason
from memtopo.common.files import closing_fd
from memtopo.common.processes import RunningClock, program_environment, python_command, spawn, start_hint
from memtopo.common.text import ending
from memtopo.sharing.claims import lock_stale, make_lock
from memtopo.sharing.sockets import abandon_in_children, is_listening

_EXIT = 10.0
"""Seconds that a watcher has to end."""

_STARTING = 0.1
"""Seconds that a program has to begin which is being started when its parent dies."""

_SEARCH_INTERVAL = 0.01
_COMMAND = python_command("memtopo.sharing.programs:main")


def _signal_all(entry: str, number: int) -> bool:
    """Send a signal to all processes that have an entry in their environment, `NAME=VALUE`; return whether any has."""
    found = False
    for name in filter(str.isdigit, os.listdir("/proc")):
        # The descriptor is opened before the environment is read: the id may be another process's afterwards. An error
        # is that of a process that has ended, or belongs to another user.
        with suppress(OSError), closing_fd(os.pidfd_open(int(name))) as descriptor:
            if os.fsencode(entry) in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found = True
                signal.pidfd_send_signal(descriptor, number)
    return found


def _await_all(entry: str, number: int, seconds: float) -> None:
    """Send a signal again and again, 0 for none, until no process with an entry is left or time is over."""
    clock = RunningClock()
    while _signal_all(entry, number) and clock.time() < seconds:
        time.sleep(_SEARCH_INTERVAL)


def main(parent: str, entry: str, grace: str) -> None:
    """Wait for the death of the parent; then end all processes with an entry, and kill those left after the grace."""
    try:
        descriptor = os.pidfd_open(int(parent))  # a child of the parent may keep the other end of standard input open
        ready, _, _ = select.select([0, descriptor], [], [])
        if 0 in ready and os.read(0, 1):  # the parent needs it no longer
            return
    except ProcessLookupError:
        pass  # the parent has died
    time.sleep(_STARTING)
    _signal_all(entry, signal.SIGTERM)
    _await_all(entry, 0, float(grace))
    _await_all(entry, signal.SIGKILL, float(grace))


GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""

_VARIABLE = "MEMTOPO_SOCKET"
_FILE = "producer.sock"
_INTERVAL = 0.01


class ProducerFailed(Failed):
    """A program that was started for its exports, and does not serve them."""


class ProducerProgram:
    """A command that runs until the end of a `with`. It finds the path of its socket in MEMTOPO_SOCKET.

    Its standard output goes to its standard error. `stdin` is written to its standard input, which stays open as long
    as this process lives; else that is empty. It has `grace` seconds to end after SIGTERM, and as many after SIGKILL.
    """

    def __init__(self, name: str, command: Sequence[str], stdin: bytes | None = None, *, grace: float = GRACE) -> None:
        self.name = name
        self._command, self._stdin, self._grace = command, stdin, grace
        self._folder: PrivateFolder | None = None
        self._process: Popen[bytes] | None = None
        self._watcher: Popen[bytes] | None = None
        self._until: float | None = None
        self._killed = False

    @property
    def socket(self) -> str:
        """The socket's path."""
        assert self._folder
        return str(Path(self._folder.path, _FILE))

    @property
    def survivor(self) -> int | None:
        """The process id, if the program did not end although it was killed."""
        return self._process.pid if self._process and self._killed and self._process.poll() is None else None

    def __enter__(self) -> Self:
        """Start the program. Raises `ProducerFailed`."""
        try:
            self._folder = PrivateFolder()
        except OSError as error:
            message = f"the program of {self.name!r} has no folder for its socket: {reason(error)}"
            raise ProducerFailed(message, hint="TMPDIR names a folder that can be written") from error
        with on_failure(self.__exit__):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the program by SIGTERM and then by SIGKILL, with all processes that it started, and remove its folder."""
        try:
            if self._process:
                self._end(self._process)
        finally:
            if self._watcher:
                # not by a signal, which may not be permitted
                with suppress(subprocess.TimeoutExpired):  # it is stopped
                    self._watcher.communicate(b"\n", _EXIT)
            if self._folder:
                self._folder.remove()

    def terminate(self) -> None:
        """Send SIGTERM, once; the grace begins."""
        if self._process and self._until is None:
            self._until = time.monotonic() + self._grace
            self._signal(signal.SIGTERM)

    def wait_until_serving(self, stop: Callable[[], int], patience: float) -> None:
        """Wait until a process listens at the socket. Raises `ProducerFailed`, `Stopped`."""
        clock = RunningClock()
        assert self._folder
        with closing_fd(os.open(self._folder.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
            while not is_listening(folder, _FILE):
                if end := self.end():
                    raise ProducerFailed(f"the program of {self.name!r} {end} before it served")
                if stop():
                    raise Stopped
                if clock.time() > patience:
                    message = f"the program of {self.name!r} does not serve after {patience:g} s"
                    raise ProducerFailed(message, hint="it must listen at the path in MEMTOPO_SOCKET")
                time.sleep(_INTERVAL)

    def end(self, within: float = 0.0) -> str | None:
        """Return how it ended, if it ends in so many seconds: `ended with status 3`, `was killed by SIGSEGV`."""
        until = time.monotonic() + within
        try:
            while (result := self._result()) is None:
                if time.monotonic() >= until:
                    return None
                time.sleep(_INTERVAL)
        except ChildProcessError:
            return "ended (with unknown status)"
        return ending(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status)

    def _result(self) -> os.waitid_result | None:
        """Return its result, once it ended. Raises `ChildProcessError` if SIGCHLD is ignored or it was waited for."""
        assert self._process
        # WNOWAIT leaves it a zombie: no other process gets its id, or that of its group.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _start(self) -> None:
        environment = program_environment() | {_VARIABLE: self.socket}
        environment.pop("MEMTOPO_WITH", None)  # else a memtopo would start itself for ever
        try:
            if self._stdin is None:  # memtopo's own programs end with their standard input, and start no others
                # It ends all processes with the entry once this one has died, unless that writes to it.
                command = [*_COMMAND, str(os.getpid()), self._entry, str(self._grace)]
                # Ctrl-C ends the parent, which ends the watcher.
                self._watcher = spawn(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0)
            self._process = process = Popen(  # noqa: S603 the user's own command, run without a shell
                list(self._command),
                stdin=subprocess.DEVNULL if self._stdin is None else subprocess.PIPE,
                stdout=2,
                env=environment,
                process_group=0,  # Ctrl-C interrupts this process alone, which ends the program after the teardown
            )
        except OSError as error:
            message = f"the program of {self.name!r} cannot be started: {reason(error)}"
            raise ProducerFailed(message, hint=start_hint(error)) from error
        if process.stdin:
            with suppress(BrokenPipeError):
                process.stdin.write(self._stdin or b"")
                process.stdin.flush()

    @property
    def _entry(self) -> str:
        """The entry of its environment that the processes that it starts inherit."""
        return f"{_VARIABLE}={self.socket}"

    def _end(self, process: Popen[bytes]) -> None:
        try:
            self.terminate()
            self.end(within=(self._until or 0.0) - time.monotonic())
        finally:
            self._signal(signal.SIGKILL)
            self._killed = True
            _await_all(self._entry, signal.SIGKILL, self._grace)
            with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, or now belongs to another user
                process.wait(self._grace)
            if process.stdin:
                with suppress(BrokenPipeError):
                    process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, unless that may be another's now."""
        assert self._process
        with suppress(ProcessLookupError, PermissionError):
            pid = self._process.pid
            try:
                self._result()
            except ChildProcessError:  # its id may be another's now, but no process gets the id of a group with members
                if Path(f"/proc/{pid}").exists():
                    return
            os.killpg(pid, number)


_PREFIX = "memtopo-program-"
_LOCK = "owner.lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o700


class PrivateFolder:
    """A folder in the temporary directory that is closed to other users, until `remove`. Raises `OSError`."""

    def __init__(self) -> None:
        _remove_stale()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = -1
        with on_failure(self.remove):
            with closing_fd(os.open(self.path, _FOLDER)) as folder:
                lock = make_lock(folder, _LOCK)
            if lock is None:
                raise FileExistsError(errno.EEXIST, "another process has its lock")
            self._lock = lock
        abandon_in_children(self)

    def remove(self) -> None:
        """Remove the folder with its content, as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.abandon()

    def abandon(self) -> None:
        """Close the lock, and leave the folder, as for a forked child."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _remove_stale() -> None:
    """Remove the folders of dead processes of this user."""
    with suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with suppress(OSError), closing_fd(os.open(path, _FOLDER)) as folder:
                found = os.fstat(folder)
                is_ours = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _PRIVATE
                lock = lock_stale(folder, _LOCK) if is_ours else None
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)
