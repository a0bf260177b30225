"""Processes: their facts in /proc, children of memtopo, and the clock for limits on the silence of other processes.

Children are spawned, never forked from a process that has a driver (fact 33).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import IO

from msgspec import Struct

from memtopo.common import WITHOUT_PLUGINS
from memtopo.common.errors import Exit, on_failure
from memtopo.common.files import text_of
from memtopo.common.units import shorten

PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_FIRST_PIDS = 0xEFFFFFFC
"""Pid namespace of the system itself: the kernel gives it this number (PROC_PID_INIT_INO)."""

_FLAGS, _START = 4, 17
"""Fields of `stat` after the parent."""

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD."""


class ProcessStat(Struct, frozen=True):
    """A process: its name of at most 15 bytes, its state, its parent, and its start in ticks since boot."""

    command: str
    state: str
    parent: int
    start: int
    is_kernel_thread: bool


class Broken(Struct, frozen=True):
    """Last message of a child that ends by an exception, with the exit status of an error of memtopo."""

    error: str
    hint: str | None = None
    status: int = Exit.BUG


def process_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Return the facts of a process; None if there is none, or if it has ended, also as a zombie."""
    if not (text := text_of(proc / str(pid) / "stat")):
        return None
    # The name is in brackets, and may contain brackets and blanks.
    before, _, after = text.rpartition(")")
    state, parent, *rest = after.split()
    if state in "ZX":
        return None
    kernel = bool(int(rest[_FLAGS]) & _KERNEL_THREAD)
    return ProcessStat(before.partition("(")[2], state, int(parent), int(rest[_START]), kernel)


def name_process(name: str) -> None:
    """Give this process a name of at most 15 bytes, by which `ps` and `top` list it in place of `python`."""
    with suppress(OSError):  # no /proc
        (PROC / "self/comm").write_text(name)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped: by SIGSTOP or Ctrl-Z, or in a debugger."""
    found = process_stat(pid)
    return found is not None and found.state in "Tt"


def is_frozen(pid: int) -> bool:
    """Return whether the cgroup of a process is frozen, as by `docker pause`; false where that is not visible."""
    for line in text_of(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, alone or beside version 1
            files, frozen = [f".{path}/cgroup.events", f"unified{path}/cgroup.events"], "frozen 1"
        elif controllers == "freezer":
            files, frozen = [f"freezer{path}/freezer.state"], "FROZEN"
        else:
            continue
        for file in files:
            if frozen in text_of(_CGROUPS / file).splitlines():
                return True
    return False


_STANDSTILLS = {
    "T": "is stopped (state T); continue it with 'kill -CONT {}'",
    "t": "is stopped by a debugger (state t); continue it there",
    "D": "waits in the kernel (state D), as in a call of the driver, and gets no signal before that returns",
}
"""What holds a process up, and how it goes on, by its state."""


def standstill(pid: int) -> str | None:
    """Return what holds a process up and how it goes on; None if nothing does, or if that is not visible."""
    found = process_stat(pid) if pid else None
    if not found:
        return None
    if is_frozen(pid):  # version 1 of cgroups has its processes in state D
        return "is frozen with its cgroup, as by 'docker pause', and continues after it is thawed"
    state = _STANDSTILLS.get(found.state)
    return state.format(pid) if state else None


def is_unmapped(uid: int, proc: Path = PROC) -> bool:
    """Return whether a uid is the one that the kernel reports for all users without a number in this user namespace."""
    try:
        return uid == int((proc / "sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def pid_namespace(proc: Path = PROC) -> int | None:
    """Return the number of this process's pid namespace; None if it is unknown."""
    try:
        return (proc / "self/ns/pid").stat().st_ino
    except OSError:
        return None


def in_pid_namespace(proc: Path = PROC) -> bool:
    """Return whether this process is in a pid namespace of its own, as in a container."""
    return pid_namespace(proc) not in (None, _FIRST_PIDS)


_LONGEST_COMMAND = 80
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_WITH_VALUE = re.compile(r"-[a-zA-Z]*[WX]|--check-hash-based-pycs")
"""Options of Python that take the next argument."""

_MODULE_OPTION, _CODE_OPTION = re.compile(r"-[a-zA-Z]*m(.*)"), re.compile(r"-[a-zA-Z]*c.*")


def command_of(pid: int, name: str, proc: Path = PROC) -> str:
    """Return the command of a process without its interpreter and folders; its `name` if it has no arguments."""
    arguments = text_of(proc / str(pid) / "cmdline").rstrip("\0").split("\0")
    return shorten(known_command(arguments, name), _LONGEST_COMMAND)


def known_command(arguments: Sequence[str], name: str) -> str:
    """Return the command of some arguments: that of the script or module if they are those of Python.

    Code of `python -c` is not a part of it; a process that runs code may have a `name` of its own.
    """
    program = _file_name(arguments[0])
    if not _PYTHON.fullmatch(program):
        return " ".join([program, *arguments[1:]]) or name
    rest = list(arguments[1:])
    while rest:
        option = rest.pop(0)
        if module := _MODULE_OPTION.fullmatch(option):
            return " ".join(filter(None, [module[1], *rest]))
        if _CODE_OPTION.fullmatch(option):
            own = f"{program} -c" if _PYTHON.fullmatch(name) else name
            return " ".join([own, *rest[1:]]) if own == "memtopo" else own
        if _WITH_VALUE.fullmatch(option):
            rest = rest[1:]
        elif not option.startswith("-"):
            return " ".join([_file_name(option), *rest])
    return program


def _file_name(path: str) -> str:
    """Return the name of a file without its folder; a title that a process has given itself stays as it is."""
    return path if " " in path or ":" in path else path.rpartition("/")[2]


_ROOT = str(Path(__file__).parents[2])
_PR_SET_PDEATHSIG = 1
_END_WITH = (
    f"import ctypes, os; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0); "
    "os.getppid() == {} or os._exit(1)"
)
"""Beginning of a program that ends with its parent: imports take seconds on a busy machine."""
_DETACH = "import os; os.fork() and os._exit(0)"

Stream = int | IO[bytes] | None


def python_command(entry: str, parent: int = 0, *, detached: bool = False) -> tuple[str, ...]:
    """Command that calls a function of memtopo, `package.module:function`, with the arguments appended to the command.

    The package is imported from where this process imported it; the working directory is not on the path. With the id
    of its `parent`, the process is killed when the parent dies, from before its imports on until the function changes
    that, and does nothing if the parent has died already. If `detached`, it ends at once, and a child of it calls the
    function, which is nobody's child from then on.
    """
    module, _, function = entry.partition(":")
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import {function}; {function}(*sys.argv[1:])"
    before = _DETACH if detached else ""
    if parent:
        before = _END_WITH.format(parent)
    return (sys.executable, "-P", "-c", f"{before}; {code}" if before else code)


def spawn(
    command: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = None,
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    new_session: bool = False,
    process_group: int | None = None,
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
        process_group=process_group,
    )


def program_environment() -> dict[str, str]:
    """Environment of a program that is not memtopo's, without the variable that the command line sets for itself."""
    return {name: value for name, value in os.environ.items() if (name, value) != WITHOUT_PLUGINS}


def spawn_connected(
    command: Sequence[str], *, stderr: Stream = None, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process at the other end of a SOCK_SEQPACKET socket; arguments as for `spawn`.

    The number of its end is appended to the command. Raises `OSError`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        end = theirs.fileno()
        with on_failure(ours.close):
            process = spawn([*command, str(end)], stderr=stderr, descriptors=(end,), environment=environment)
    return process, ours


def start_hint(error: OSError) -> str | None:
    """Return how to raise the limit because of which a process was not started; None for other errors."""
    if error.errno != errno.EAGAIN:
        return None
    return "raise the limit of processes: 'ulimit -u', TasksMax= in a systemd unit, --pids-limit of a container"


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


LONGEST_STEP = 0.5
"""Seconds that count between two readings of a `RunningClock`."""


class RunningClock:
    """Monotonic clock without the time for which this process was stopped: by Ctrl-Z, SIGSTOP or a freezer.

    A process that goes on sees only that much time has passed since it last read the clock. Of the time between two
    readings at most `LONGEST_STEP` seconds count, so a wait has to read the clock at least as often. `now` returns
    seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._last = now()
        self._time = 0.0

    def time(self) -> float:
        """Return the seconds for which this process ran since the clock was made."""
        before, self._last = self._last, self.now()
        self._time += min(self._last - before, LONGEST_STEP)
        return self._time
