"""Processes of Python, which a fork server makes where it can (`tests.helpers.fork_server`)."""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memtopo.common import processes
from memtopo.common.processes import python_command
from memtopo.sharing import programs
from tests.helpers import fork_client
from tests.helpers.fork_client import inherited
from tests.helpers.fork_server import LARGEST, run

ROOT = Path(__file__).parent.parent.parent
_TESTS = Path(__file__).parent.parent
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")
_C_LOCALES = ("", "C", "POSIX", "C.UTF-8")
_MAY_DIFFER = ("PYTHONPATH", "PYTHONUNBUFFERED")
_SERVER = "import sys; from tests.helpers.fork_server import main; main(*sys.argv[1:])"
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Variables that keep libraries from starting threads, of which a forked process would have none."""


class ForkServer:
    """A fork server, with its variables that an interpreter reads when it starts; the first fork starts it."""

    def __init__(self, **more: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LANG", "LC_"))}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._environment = kept | {"PYTHONPATH": path, "LANG": "C.UTF-8"} | more
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # Both ends stay open here, so that the start of the server changes no number of descriptors.
        self._sock, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")  # to an abstract address that the system chooses
        self._listener.listen()

    def accepts(self, environment: Mapping[str, str]) -> bool:
        """Return whether an interpreter with these variables would start as the server did."""
        return _read_at_start(environment) == _read_at_start(self._environment)

    def command(self, module: str) -> list[str]:
        """Return the words with which a script of a shell runs a module, in a process that the server forks."""
        with self._lock:
            self._process = self._process or self._start()
        address = self._listener.getsockname()[1:].decode()
        return [sys.executable, "-I", "-S", str(fork_client.__file__), address, module]

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Return the id of a new child of this process; 0 if the server can make none."""
        with self._lock:
            self._process = self._process or self._start()
            if self._process.poll() is None:
                socket.send_fds(self._sock, [json.dumps(request).encode()], descriptors)
            while self._process.poll() is None:
                if select.select([self._sock], [], [], 1.0)[0]:
                    return int.from_bytes(self._sock.recv(4), "little")
        return 0

    def _start(self) -> subprocess.Popen[bytes]:
        theirs = [self._theirs.fileno(), self._listener.fileno()]
        return subprocess.Popen(
            [sys.executable, "-c", _SERVER, *map(str, theirs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=self._environment | _ONE_THREAD,
            pass_fds=theirs,
        )


class ThisProcess:
    """A process that was forked from a server, as the server of its own children."""

    def accepts(self, environment: Mapping[str, str]) -> bool:
        """Return whether a fork is safe (fact 33), and an interpreter with these variables would start as this one."""
        safe = "libcuda.so" not in Path("/proc/self/maps").read_text()
        return safe and _read_at_start(environment) == _read_at_start(os.environ)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Return the id of a new child of this process, which never returns from here; 0 while a thread forbids it."""
        if not _others_wait():
            return 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads, from Python 3.12 on
            pid = os.fork()
        return pid or run(request, descriptors)


def _others_wait() -> bool:
    """Return whether each other thread waits for an event, and so has no lock that a forked process would need.

    It cannot go on while this thread has the interpreter's lock, which `os.fork` keeps.
    """
    tasks = len(os.listdir("/proc/self/task"))
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    waiting = [frame.f_code is threading.Condition.wait.__code__ for frame in frames.values()]
    return all(waiting) and len(waiting) + 1 == tasks


def shell_command(module: str = "memtopo") -> str:
    """Return the command with which a script of a shell runs a module: that of the server, if this process has one."""
    server = next(iter(PythonProcess.servers), None)
    words = server.command(module) if isinstance(server, ForkServer) else [sys.executable, "-m", module]
    return shlex.join(words)


def install(server: ForkServer | ThisProcess) -> None:
    """Have a server make the processes that this one and memtopo in it start from now on."""
    PythonProcess.servers = (server,)
    for module in (processes, programs):
        vars(module)["Popen"] = OwnChild


def install_another(**more: str) -> None:
    """Have another server make the processes with these variables, which an interpreter reads when it starts."""
    if isinstance(next(iter(PythonProcess.servers), None), ForkServer):
        PythonProcess.servers += (ForkServer(**more),)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START)
        and name not in _MAY_DIFFER
        and not (name.startswith(("LANG", "LC_")) and value in _C_LOCALES)
    }


def _program(command: Sequence[str]) -> dict[str, Any]:
    """Program of a command and what it adds to the path of modules; nothing for what is no program in Python."""
    words = [os.fspath(word) for word in command]
    if words[:1] != [sys.executable]:
        return {}
    strict, safe = words[1:3] == ["-W", "error"], words[1] == "-P"
    option, *rest = words[1 + safe + 2 * strict :]
    if option in {"-m", "-c"}:
        given, path = {"option": option, "program": rest[0], "arguments": rest[1:]}, ""
    elif option.endswith(".py"):
        given, path = {"option": "", "program": option, "arguments": rest}, str(Path(option).parent)
    else:
        return {}
    return {**given, "path": [] if safe else [path], "strict": strict}


class PythonProcess(subprocess.Popen[Any]):
    """A process as `Popen` starts it: a program in Python is forked, with memtopo's modules from this repository.

    A variable that the interpreter reads when it starts, or an option that the server does not know, has a new
    interpreter started, and so has every other program; so has every program if there is no server.
    """

    servers: tuple[ForkServer | ThisProcess, ...] = ()

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        environment = dict(os.environ if env is None else env)
        self._request: dict[str, Any] = {}
        program = _program(command) if options.keys() <= _OPTIONS else {}
        self.server = next((each for each in self.servers if each.accepts(environment)), None)
        if program and self.server:
            self._request = program | {
                "environment": environment,
                "folder": str(options.get("cwd") or Path.cwd()),
                "session": options.get("start_new_session", False),
                "group": -1 if options.get("process_group") is None else options["process_group"],
                **inherited(),
            }
        super().__init__(command, env=env, **options)

    def _execute_child(self, *arguments: Any) -> None:
        """Start the process; the parameters are those of Python 3.11 to 3.13."""
        if not self._request or not self.server or not self._fork(*arguments):
            super()._execute_child(*arguments)  # type: ignore[misc]

    def _fork(self, *arguments: Any) -> bool:
        """Have the server fork; return whether it has."""
        assert self.server
        pass_fds, pipes = arguments[4], arguments[10:16]
        given = [pipe if pipe >= 0 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        numbers = [0, 1, 2, *pass_fds]
        self.pid = self.server.fork(self._request | {"descriptors": numbers}, [*given, *pass_fds])
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        return bool(self.pid)


class OwnChild(PythonProcess):
    """A child that memtopo starts: its own functions and workers of tests are forked, other programs are started."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        option, program = command[1:3] if len(command) > 2 else ("", "")
        own = [option, program] == list(python_command("memtopo:main")[1:3])
        own = own or (option == "-P" and _TESTS in Path(program).parents)
        self.servers = PythonProcess.servers if own else ()
        super().__init__(command, **options)


_OPTIONS = {
    *("stdin", "stdout", "stderr", "bufsize", "text", "encoding", "errors"),
    *("cwd", "pass_fds", "start_new_session", "process_group"),
}


def run_python(
    command: Sequence[str], *, input: Any = None, timeout: float | None = None, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command of `PythonProcess` as `subprocess.run` does, and return its result."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with PythonProcess(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
