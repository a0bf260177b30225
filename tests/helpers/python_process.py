"""Processes of Python, which a fork server makes where it can (`tests.helpers.fork_server`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.helpers.fork_server import LARGEST

ROOT = Path(__file__).parent.parent.parent
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "OPENBLAS_", "OMP_")
_C_LOCALES = ("", "C", "POSIX", "C.UTF-8")
_MAY_DIFFER = ("PYTHONPATH", "PYTHONUNBUFFERED")


class _ForkServer:
    """A fork server, with its variables that an interpreter reads when it starts."""

    def __init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LANG", "LC_"))}
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = kept | {"PYTHONPATH": path, "LANG": "C.UTF-8"}
        self._lock = threading.Lock()
        self.fixed = _read_at_start(environment)
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Return the id of a new child of this process."""
        with self._lock:
            socket.send_fds(self._sock, [json.dumps(request).encode()], list(descriptors))
            pid = self._sock.recv(4)
        assert pid, "the fork server has ended"
        return int.from_bytes(pid, "little")


@cache
def fork_server() -> _ForkServer:
    """Return the server of this process, which is started by the first call and ends with this process."""
    return _ForkServer()


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
    safe = words[1] == "-P"
    option, *rest = words[1 + safe :]
    if option in {"-m", "-c"}:
        return {"option": option, "program": rest[0], "arguments": rest[1:], "path": [] if safe else [""]}
    if option.endswith(".py"):
        return {"option": "", "program": option, "arguments": rest, "path": [] if safe else [str(Path(option).parent)]}
    return {}


class PythonProcess(subprocess.Popen[Any]):
    """A process as `Popen` starts it: a program in Python is forked, with memtopo's modules from this repository.

    A variable that the interpreter reads when it starts, or an option that the server does not know, has a new
    interpreter started, and so has every other program.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        environment = dict(os.environ if env is None else env)
        self._request: dict[str, Any] = {}
        program = _program(command) if options.keys() <= _OPTIONS else {}
        if program and _read_at_start(environment) == fork_server().fixed:
            self._request = program | {
                "environment": environment,
                "folder": str(options.get("cwd") or Path.cwd()),
                "session": options.get("start_new_session", False),
                "group": options.get("process_group", -1),
            }
        super().__init__(command, env=env, **options)

    def _execute_child(self, *arguments: Any) -> None:
        """Have the server fork, in place of fork and exec; the parameters are those of Python 3.11 to 3.13."""
        if not self._request:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        pass_fds, pipes = arguments[4], arguments[10:16]
        given = [pipe if pipe >= 0 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        numbers = [0, 1, 2, *pass_fds]
        self.pid = fork_server().fork(self._request | {"descriptors": numbers}, [*given, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


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
