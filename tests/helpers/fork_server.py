"""A server of processes: each is forked once the modules of memtopo are imported, and runs a program in Python.

An import of memtopo takes half a second of processor time, a fork some milliseconds. The server has one thread and no
driver (fact 33). A process has the arguments, the environment, the working directory, the descriptors, the session and
the group of its request, and the server's parent as its own; it has the modules and the hash seed of the server.
`tests.helpers.python_process` has the other end.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import marshal
import os
import pkgutil
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
from contextlib import suppress
from typing import Any, NoReturn

LARGEST = 200_000
"""Bytes of a request."""

MOST_DESCRIPTORS = 64
_PATH = [*sys.path]
_ERRORS = {"stdin": "surrogateescape", "stdout": "surrogateescape", "stderr": "backslashreplace"}
_LIBC = ctypes.PyDLL(None, use_errno=True)  # calls keep the interpreter's lock
_ON_X86 = os.uname().machine == "x86_64"
_SYS_CLONE = 56 if _ON_X86 else 220  # the latter on most others
_PR_GET_TID_ADDRESS = 40
_CLONE_PARENT = 0x8000
_CHILD_TID = 0x1000000 | 0x200000  # CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID


def import_all() -> None:
    """Import the modules of memtopo and those of the libraries that it imports late."""
    import memtopo

    for module in pkgutil.walk_packages(memtopo.__path__, "memtopo."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("numpy", "rich.progress", "rich.live", "rich.table"):
        with suppress(ImportError):
            importlib.import_module(name)
    from memtopo import spec
    from memtopo.run.processes.fork_server import _prepare

    for section in spec.SECTIONS:
        spec._adapter(section)  # built once, and not by each process that reads a spec
    _prepare("memtopo.drivers.sim")  # nor by each run of several processes


def run_commands() -> None:
    """Run commands on the simulator: a process then has what they make when they first need it.

    Such are methods of records and patterns, and bytecode that is specialised for its types: a third of the time that a
    command takes.
    """
    from memtopo.cli.app import run as run_command

    streams, threshold = (sys.stdout, sys.stderr), gc.get_threshold()
    os.environ["MEMTOPO_PROGRESS"] = "none"  # a thread shows it
    for name in ("apply", "plan"):
        status = run_command([name, "specs/quickstart.yaml", "--machine", "h200x2"])
        assert status == 0, f"{name} has exited with {status}"
    sys.stdout, sys.stderr = streams
    gc.set_threshold(*threshold)


def main(descriptor: str, listening: str) -> None:
    """Serve until the other end is closed; in a process that was made, run the program that was requested."""
    from tests.helpers import python_process

    sock, listener = (socket.socket(fileno=int(each)) for each in (descriptor, listening))
    import_all()
    run_commands()
    python_process.install(python_process.ThisProcess())
    assert len(os.listdir("/proc/self/task")) == 1, "a module has started a thread"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which close the other end
    clients: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ends = {client.fileno(): pid for pid, client in clients.values()}
        for ready in select.select([sock.fileno(), listener.fileno(), *ends, *clients], [], [])[0]:
            if ready == sock.fileno():
                if not _serve(sock):
                    return
            elif ready == listener.fileno():
                clients.update(_serve_client(listener.accept()[0]))
            elif ready in ends:  # the program was killed
                os.kill(ends[ready], signal.SIGKILL)
            else:
                _report_end(ready, *clients.pop(ready))


def _serve(sock: socket.socket) -> bool:
    """Make a child of the other end, which is told its id; return whether the other end is open."""
    data, received, *_ = socket.recv_fds(sock, LARGEST, MOST_DESCRIPTORS)
    if data:
        pid = _fork_sibling()
        if not pid:
            run(json.loads(data), received)
        _close(received)
        sock.send(max(pid, 0).to_bytes(4, "little"))
    return bool(data)


def _serve_client(client: socket.socket) -> dict[int, tuple[int, socket.socket]]:
    """Make a child of this process for a program of a shell; return its descriptor, its id and the other end.

    A client whose variables an interpreter would read at its start is told 0.
    """
    from tests.helpers.python_process import ThisProcess

    data, received, *_ = socket.recv_fds(client, LARGEST, MOST_DESCRIPTORS)
    request = marshal.loads(data)
    accepted = ThisProcess().accepts(request["environment"])
    pid = os.fork() if accepted else -1
    if not pid:
        run(request, received)
    _close(received)
    client.send(max(pid, 0).to_bytes(4, "little"))
    return {os.pidfd_open(pid): (pid, client)} if accepted else {}


def _report_end(pidfd: int, pid: int, client: socket.socket) -> None:
    os.close(pidfd)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with client, suppress(OSError):
        client.send(status.to_bytes(4, "little", signed=True))


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def run(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run the requested program in a process that was forked for it, and end it."""
    streams = [sys.stdin, sys.stdout, sys.stderr]  # kept: the last reference would write what they have not written
    try:
        _become(request, descriptors)
    except BaseException:  # noqa: BLE001 nothing of the process that was forked may run on
        os.write(2, traceback.format_exc().encode())
        os._exit(70)
    _exit(_status_of(request) if streams else 0)


def _fork_sibling() -> int:
    """Fork a process that is a child of the server's parent; return its id, 0 in the new process, or -1.

    So its parent waits for it, and gets its signals, as if it had started it. os.fork has no such flag.
    """
    address = ctypes.c_void_p()
    found = _LIBC.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) == 0
    flags = _CLONE_PARENT | signal.SIGCHLD | (_CHILD_TID if found else 0)  # where the C library keeps a thread's id
    ctypes.pythonapi.PyOS_BeforeFork()
    last = (address, None) if _ON_X86 else (None, address)
    pid: int = _LIBC.syscall(ctypes.c_long(_SYS_CLONE), ctypes.c_long(flags), None, None, *last)
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid


def _status_of(request: dict[str, Any]) -> int:
    """Run a module, a text or a file; return the exit status that an interpreter gives it."""
    try:
        if request["option"] == "-m":
            if not hasattr(sys.modules.get(request["program"]), "__path__"):
                sys.modules.pop(request["program"], None)  # it is imported here, but not there
            runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
        elif request["option"] == "-c":
            sys.modules["__main__"] = main_module = types.ModuleType("__main__")
            exec(compile(request["program"], "<string>", "exec"), vars(main_module))
        else:
            runpy.run_path(request["program"], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201 as the interpreter does
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001 as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def _exit(status: int) -> NoReturn:
    """End as the interpreter does, without taking its modules apart, which would copy most of the server's pages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream and not stream.closed:
                stream.flush()
        except OSError:
            status = 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def _become(request: dict[str, Any], received: list[int]) -> None:
    """Give a forked process what the requested one has, and nothing of the process that it comes from."""
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    atexit._clear()
    gc.enable()
    _reset_signals(request["ignored"], request["blocked"])
    _keep_descriptors(dict(zip(request["descriptors"], received, strict=True)))
    os.umask(request["umask"])
    for limit, (soft, hard) in request["limits"].items():
        resource.setrlimit(int(limit), (soft, hard))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["option"] or request["program"], *request["arguments"]]
    added = [*request["path"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*added, *(each for each in _PATH if each not in added)]
    if request["strict"]:
        warnings.simplefilter("error")
    _open_streams(unbuffered=bool(os.environ.get("PYTHONUNBUFFERED")))


def _reset_signals(ignored: list[int], blocked: list[int]) -> None:
    """Set handlers and mask as a new interpreter has them."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):  # those of the C library
            python_own = number in {signal.SIGPIPE, signal.SIGXFSZ}
            signal.signal(number, signal.SIG_IGN if number in ignored or python_own else signal.SIG_DFL)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _keep_descriptors(received: dict[int, int]) -> None:
    """Give descriptors the numbers that they are to have, and close all others."""
    free = max([2, *received, *received.values()]) + 1
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, free) for number, fd in received.items()}
    for number, fd in moved.items():
        os.dup2(fd, number)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in received:
            with suppress(OSError):  # that of the folder itself
                os.close(fd)


def _open_streams(*, unbuffered: bool) -> None:
    """Open the standard streams as the interpreter does when it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        except OSError:
            new = None
        else:
            through = unbuffered and number > 0
            buffer: Any = io.BufferedReader(raw) if number == 0 else raw if through else io.BufferedWriter(raw)
            lines = number > 0 and not unbuffered and (number == 2 or raw.isatty())
            new = io.TextIOWrapper(
                buffer, "utf-8", _ERRORS[name], "\n" if number else None, line_buffering=lines, write_through=through
            )
            new.mode = "w" if number else "r"  # type: ignore[misc]
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
