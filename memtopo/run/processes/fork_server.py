"""A server of workers, which imports what they need once and forks each of them, before any driver is initialised.

The imports of a worker take a third of a second of processor time, a fork some milliseconds; it is safe before `cuInit`
(fact 33). A forked worker is a child of the server's parent, the conductor, as if that had started it: the
conductor waits for it, and its death ends the worker. The server has one thread and opens no driver.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
from contextlib import suppress
from importlib import import_module
from typing import Any, get_args

from memtopo.common.spawn import die_with_parent, inherited_socket
from memtopo.kinds import KINDS
from memtopo.run import messages
from memtopo.run.processes import worker
from memtopo.sharing.channel import adapter_of

LARGEST, MOST_DESCRIPTORS = 64 << 10, 16
"""Bytes of a request, and descriptors beside it."""

_LIBC = ctypes.PyDLL(None, use_errno=True)  # calls keep the interpreter's lock
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_PR_GET_TID_ADDRESS = 40
_CLONE_PARENT = 0x8000
_CHILD_TID = 0x1000000 | 0x200000  # CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID


def main(descriptor: str) -> None:
    """Fork a worker for each request until the other end is closed; answer with its process id, or -1.

    In a worker, return once its work is done.
    """
    sock = inherited_socket(descriptor)
    _prepare()
    while (received := socket.recv_fds(sock, LARGEST, MOST_DESCRIPTORS))[0]:
        request, descriptors = json.loads(received[0]), received[1]
        with suppress(ImportError):  # the worker says what is missing
            import_module(request["driver"])
        pid = _fork_sibling()
        if pid == 0:
            sock.close()
            _work(request, descriptors)
            return
        for fd in descriptors:
            os.close(fd)
        sock.send(pid.to_bytes(4, "little", signed=True))


def _prepare() -> None:
    """Import and build what workers need later: the steps of all kinds, and the adapters of their messages."""
    for kind in KINDS:
        with suppress(ModuleNotFoundError):
            import_module(f"{kind.__module__}.steps")
    for message in (*get_args(messages.ToWorker), *get_args(messages.FromWorker)):
        adapter_of(message)
    gc.freeze()


def _work(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run the worker of a request, with the environment and the end with its parent that a spawned one has."""
    die_with_parent(request["parent"])
    os.environ.update(request["environment"])
    worker.main(*map(str, descriptors))


def _fork_sibling() -> int:
    """Fork a process that is a child of this one's parent; return its id, 0 in the new process, or -1.

    `os.fork` has no such flag. The C library keeps the id of a thread at an address that the kernel has; where `prctl`
    does not return it, nothing is forked.
    """
    number, address = _SYS_CLONE.get(os.uname().machine), ctypes.c_void_p()
    if number is None or _LIBC.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        return -1
    flags = _CLONE_PARENT | int(signal.SIGCHLD) | _CHILD_TID
    last = (address, None) if number == _SYS_CLONE["x86_64"] else (None, address)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _LIBC.syscall(ctypes.c_long(number), ctypes.c_long(flags), None, None, *last)
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid
