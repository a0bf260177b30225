"""A program that serves at a socket of its own: started, waited for until it serves, and ended, with all it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from memtopo.common.errors import MemtopoError
from memtopo.common.text import signal_name
from memtopo.executor import Stopped
from memtopo.sharing.sockets import is_listening

GRACE = 5.0
"""Seconds, where nobody says otherwise."""

_FILE = "producer.sock"
_GLANCE = 0.01
# The system sends SIGTERM when whoever started it dies, however that comes about; what Python ignores it does not.
_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"memtopo: {sys.argv[2]} cannot be started: {(error.strerror or 'error').lower()}")
"""


class ProducerFailed(MemtopoError):
    """A program that was started for its exports, and does not serve them."""

    exit_code = 4


class Program:
    """A command that runs until the `with` ends. It finds the path of its socket in MEMTOPO_SOCKET.

    Its standard output goes where its standard error does. With `said`, that is on its standard input, whose end tells
    it of ours; else it has none. After SIGTERM it has `grace` seconds to end, and as many after SIGKILL.
    """

    def __init__(self, name: str, command: Sequence[str], said: bytes | None = None, *, grace: float = GRACE) -> None:
        self.name = name
        self._command, self._said, self._grace = command, said, grace
        self._folder = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._until: float | None = None
        self._killed = False

    @property
    def socket(self) -> str:
        """The socket's path."""
        return str(Path(self._folder, _FILE))

    @property
    def stuck(self) -> int | None:
        """Its process id, where it did not end although it was killed."""
        return self._process.pid if self._process and self._killed and self._process.poll() is None else None

    def __enter__(self) -> Self:
        """Start it. Raises `ProducerFailed`."""
        self._folder = tempfile.mkdtemp(prefix="memtopo-")  # closed to everybody else
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it, by SIGTERM and then by SIGKILL, and remove its folder."""
        try:
            if self._process:
                self._end(self._process)
        finally:
            self._remove()

    def ask(self) -> None:
        """Ask it to end, by SIGTERM, once: its grace begins."""
        if self._process and self._until is None:
            self._until = time.monotonic() + self._grace
            self._signal(signal.SIGTERM)

    def await_served(self, stop: Callable[[], int], patience: float) -> None:
        """Wait until somebody answers at the socket. Raises `ProducerFailed`, `Stopped`."""
        until = time.monotonic() + patience
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while not is_listening(folder, _FILE):
                if told := self.ended():
                    raise ProducerFailed(f"the program of {self.name!r} {told} before it served")
                if stop():
                    raise Stopped
                if time.monotonic() > until:
                    told = f"the program of {self.name!r} does not serve after {patience:g} s"
                    raise ProducerFailed(told, hint="it is to listen at the path that it finds in MEMTOPO_SOCKET")
                time.sleep(_GLANCE)
        finally:
            os.close(folder)

    def ended(self, within: float = 0.0) -> str | None:
        """How it came to its end, if it does in so many seconds: `ended with status 3`, `was killed by SIGSEGV`."""
        until = time.monotonic() + within
        try:
            while (found := self._found()) is None:
                if time.monotonic() >= until:
                    return None
                time.sleep(_GLANCE)
        except ChildProcessError:
            return "ended (nobody knows how)"
        if found.si_code == os.CLD_EXITED:
            return f"ended with status {found.si_status}"
        return f"was killed by {signal_name(found.si_status)}"

    def _found(self) -> os.waitid_result | None:
        """What became of it. Raises `ChildProcessError` where SIGCHLD is ignored, or somebody else waited for it."""
        assert self._process
        # It is not waited for yet: its number stays its own, and that of its group.
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "MEMTOPO_WITH"}  # or memtopo, for ever
        launch = (sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())) if self._said is None else ()
        try:
            self._process = process = subprocess.Popen(  # noqa: S603 what the user wrote at the command line, and no shell
                [*launch, *self._command],
                stdin=subprocess.DEVNULL if self._said is None else subprocess.PIPE,
                stdout=2,
                env=environment | {"MEMTOPO_SOCKET": self.socket},
                process_group=0,  # Ctrl-C is ours to hear, and it is to be there until all is taken down
            )
        except OSError as error:
            told = f"the program of {self.name!r} cannot be started: {(error.strerror or 'error').lower()}"
            raise ProducerFailed(told) from error
        if process.stdin:
            with suppress(BrokenPipeError):
                process.stdin.write(self._said or b"")
                process.stdin.flush()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            self.ask()
            self.ended(within=(self._until or 0.0) - time.monotonic())
        finally:
            self._signal(signal.SIGKILL)  # what it started itself as well
            self._killed = True
            with suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel, or is another user's by now
                process.wait(self._grace)
            if process.stdin:
                with suppress(BrokenPipeError):
                    process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send it to its group, but where all of that may be another user's."""
        assert self._process
        with suppress(ProcessLookupError, PermissionError):
            if not self._replaced(self._process.pid):
                os.killpg(self._process.pid, number)

    def _replaced(self, pid: int) -> bool:
        """Whether its number is another process's by now. While its group has anybody left, no process gets that."""
        try:
            self._found()
        except ChildProcessError:
            return Path(f"/proc/{pid}").exists()
        return False

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
