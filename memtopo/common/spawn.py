"""Child processes of memtopo: spawned, never forked from a process that has a driver (fact 33)."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_ROOT = str(Path(__file__).parents[2])
_PR_SET_PDEATHSIG = 1

Stream = int | IO[bytes] | None


def python_command(entry: str) -> tuple[str, ...]:
    """Command that calls a function of memtopo, `package.module:function`, with the arguments appended to the command.

    The package is imported from where this process imported it; the working directory is not on the path.
    """
    module, _, function = entry.partition(":")
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import {function}; {function}(*sys.argv[1:])"
    return (sys.executable, "-P", "-c", code)


def spawn(
    command: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = None,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that inherits `descriptors`; `environment` is added to that of this process.

    Without further arguments its standard error is this process's, and it has no standard input or output. Raises
    `OSError`.
    """
    return subprocess.Popen(  # noqa: S603 a command of memtopo or of a caller, and no shell
        list(command),
        pass_fds=descriptors,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **environment} if environment else None,
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


def inherited_socket(descriptor: str) -> socket.socket:
    """Socket from `spawn_connected` in the process that it started; not inherited any further."""
    sock = socket.socket(fileno=int(descriptor))
    sock.set_inheritable(False)
    return sock


def signal_on_parent_death(number: int) -> bool:
    """Have the system send a signal to this process when its parent dies; false if it has died already."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def memory_file(data: bytes) -> int:
    """Descriptor of a new file in memory, positioned at its beginning; the caller closes it."""
    fd = os.memfd_create("memtopo", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
