"""A program for scripts of a shell: it has the tests' server fork a process that runs a module, and ends as that does.

    python -I -S fork_client.py ADDRESS MODULE ARGUMENT…

It imports no more than it needs: an interpreter with memtopo takes twenty times as long to start. The process has its
descriptors, folder and variables, and a group of its own: signals reach it from here.
"""

from __future__ import annotations

import _socket
import marshal
import os
import resource
import signal
import sys
from array import array
from typing import Any

_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"]
_HANDLED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def inherited() -> dict[str, Any]:
    """Properties of this process that a process which it starts has, too."""
    with open("/proc/self/status") as status:  # noqa: PTH123 pathlib takes as long to import as all else
        (mask,) = (line.split()[1] for line in status if line.startswith("Umask:"))
    return {
        "umask": int(mask, 8),
        "limits": {number: resource.getrlimit(number) for number in _LIMITS},
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "ignored": [
            int(number) for number in _HANDLED - _IGNORED_BY_PYTHON if signal.getsignal(number) is signal.SIG_IGN
        ],
    }


def main(address: str, module: str, arguments: list[str]) -> None:
    """Run a module in a process of the server with an abstract address; in this process, if the server refuses."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    descriptors = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != sock.fileno() and _is_open(fd)]
    request = {
        "option": "-m", "program": module, "arguments": arguments, "path": [""], "strict": False,
        "environment": dict(os.environ), "folder": os.getcwd(), "session": False, "group": 0,  # noqa: PTH109
        "descriptors": descriptors, **inherited(),
    }  # fmt: skip
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    sock.connect(f"\0{address}")
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array("i", descriptors))
    sock.sendmsg([marshal.dumps(request)], [rights])
    pid = int.from_bytes(sock.recv(4), "little")
    if not pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
    _end_as(sock, pid, {*request["blocked"], *request["ignored"]})


def _is_open(fd: int) -> bool:
    """Return whether a descriptor is not that by which the folder of descriptors was read."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _end_as(sock: Any, pid: int, kept: set[int]) -> None:
    """Pass signals on to a process until it has ended, and end with its status or by its signal."""
    for number in _HANDLED - kept - {signal.SIGCHLD}:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED - kept)
    status = int.from_bytes(sock.recv(4), "little", signed=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
