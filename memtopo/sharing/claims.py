"""Claims of endpoints: a lock that one process holds, a socket beside it, and removal of what dead processes left.

The lock is the lock on the file, not its existence: a lock file that no process has locked is stale. After locking a
file, a process checks that it is still the one at that name, since the previous owner may just have removed it.

A lock file begins with a marker from the moment at which it appears, and is never written again. A file without the
marker belongs to another program, as `poetry.lock` beside a socket `poetry`: it is neither locked nor changed.

The processes of a user that are those of a layout are named in its lock file, and keep its lock: it shows which of them
still have memory, even after the end of their coordinator.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Self

from msgspec import Struct

from memtopo.common.errors import ExchangeError, on_failure, reason
from memtopo.common.files import closing_fd
from memtopo.common.processes import PROC, pid_namespace
from memtopo.common.text import process_name
from memtopo.plans.report import Report
from memtopo.sharing import wire
from memtopo.sharing.endpoints import Endpoint, no_folder
from memtopo.sharing.messages import encode_end
from memtopo.sharing.sockets import abandon_in_children, is_bound, is_listening
from memtopo.sharing.status import LayoutEnd, LayoutEnded

BACKLOG = 128
# A client that removes stale files holds the lock for some microseconds; a holder that starts just then tries again.
_TRIES, _BETWEEN = 20, 0.02
_ELSEWHERE = "remove it if no program needs it; or use another socket"
_LOCK_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MARKER = b"memtopo lock of process "
_LONGEST_LOCK = 64 << 10
_LOCK_TEXT = re.compile(
    rb"memtopo lock of process ([0-9]{1,20})(?: in pid namespace ([0-9]{1,20}))?\n((?:[A-Za-z0-9_.-]+ [0-9]{1,20}\n)*)"
)


class Claim:
    """An endpoint that belongs to this process until `close`; no other process can hold a layout there.

    Claim it before anything is built, so that a second holder fails at once, and close it after everything is taken
    down.
    """

    def __init__(self, endpoint: Endpoint, folder: int, lock: int) -> None:
        self.endpoint = endpoint
        self._folder, self._lock = folder, lock
        self._socket: os.stat_result | None = None
        self._kept_open: list[socket.socket] = []
        abandon_in_children(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, *, mode: int = 0o600, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
        """Create the socket of a kind, which listens from the moment at which it appears. Raises `ExchangeError`."""
        sock = socket.socket(socket.AF_UNIX, kind)
        temporary = _temporary_name(self._lock)
        try:
            # A path is limited to 108 bytes, and a name alone may be longer: the socket is linked to it.
            os.fchmod(sock.fileno(), mode & 0o600)  # the mode that bind() gives the file, which others never may open
            sock.bind(f"/proc/self/fd/{self._folder}/{temporary}")
            os.chmod(temporary, mode, dir_fd=self._folder)
            sock.listen(BACKLOG)
            self._socket = os.stat(temporary, dir_fd=self._folder, follow_symlinks=False)
            # Unlike a renamed socket, a linked one replaces no file that another program made in the meantime.
            os.link(temporary, self.endpoint.file, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.unlink(temporary, dir_fd=self._folder)
        except OSError as error:
            sock.close()
            _unlink_socket(self._folder, temporary)
            raise ExchangeError(
                "folder", f"socket {self.endpoint.path!r} cannot be created: {reason(error)}"
            ) from error
        return sock

    def unlink_socket(self) -> None:
        """Remove the socket from its folder: new clients do not find it."""
        if self._socket:
            _unlink(self._folder, self.endpoint.file, self._socket)
        self._socket = None

    def keep_open(self, sock: socket.socket) -> None:
        """Keep a connection open until `close`: its end reports to the client that everything is taken down."""
        self._kept_open.append(sock)

    def report_end(self, report: Report) -> None:
        """Send the end of the layout on the connections that are kept open."""
        for sock in self._kept_open:
            with suppress(OSError):
                wire.send(sock, wire.encode(encode_end(report)))

    @property
    def kept_open(self) -> int:
        """Number of connections that are kept open until `close`."""
        return len(self._kept_open)

    def share(self) -> int:
        """Return a new descriptor of the lock, for a process that is to keep it."""
        return os.dup(self._lock)

    def close(self) -> None:
        """Remove socket and lock; in a forked child, the parent's stay."""
        if self._lock < 0:
            return
        self.unlink_socket()
        _unlink(self._folder, self.endpoint.lock, os.fstat(self._lock))
        self.abandon()

    def abandon(self) -> None:
        """Close lock, folder and connections without removing anything, as for a forked child."""
        if self._lock < 0:
            return
        descriptors = self._lock, self._folder
        self._lock = self._folder = -1
        self._socket = None
        for each in descriptors:
            os.close(each)
        for sock in self._kept_open:
            sock.close()


def claim(endpoint: Endpoint, allow_uids: Collection[int] = (), processes: Mapping[str, int] | None = None) -> Claim:
    """Claim an endpoint, in a folder of this user, of root or of `allow_uids`.

    `processes` are those of a user, by label, that are to share the lock. Raises `ExchangeError` if another process
    has it, or if its folder cannot be trusted.
    """
    folder = claimed_folder(endpoint, allow_uids)
    with on_failure(os.close, folder):
        try:
            return Claim(endpoint, folder, _acquire(folder, endpoint, processes or {}))
        except OSError as error:
            message = f"lock {str(Path(endpoint.folder, endpoint.lock))!r} cannot be acquired: {reason(error)}"
            raise ExchangeError("folder", message, hint=_ELSEWHERE) from error


def claimed_folder(endpoint: Endpoint, allow_uids: Collection[int] = ()) -> int:
    """Open the folder in which an endpoint is claimed; the runtime folder is made. Raises `ExchangeError`."""
    try:
        return endpoint.open_folder(make=True, allow_uids=allow_uids)
    except FileNotFoundError as error:
        raise no_folder(endpoint.folder) from error


def lock_owner(folder: int, file: str) -> int | None:
    """Return the process that a lock file names, if it is one of memtopo; 0 if it is of another pid namespace."""
    found = _read_lock(folder, file)
    return found.pid if found else None


def lost_layout(folder: int, endpoint: Endpoint) -> LayoutEnd | None:
    """Return the end of a layout whose coordinator has ended, while processes have its lock; None for any other."""
    found = _read_lock(folder, endpoint.lock)
    if found is None or not found.pid or not found.processes or found.is_open_in(found.pid):
        return None
    remaining = {label: pid for label, pid in found.processes.items() if found.is_open_in(pid)}
    reason = f"its coordinator has ended ({process_name(found.pid)})"
    return LayoutEnd(reason, lost=True, ended={"coordinator": found.pid}, remaining=remaining) if remaining else None


class _Lock(Struct, frozen=True):
    """Content of a lock file: its owner, and the processes of a user that share it, by label; 0 if not visible."""

    pid: int
    processes: Mapping[str, int]
    file: os.stat_result

    def is_open_in(self, pid: int) -> bool:
        """Return whether a process has the file open."""
        with suppress(OSError):  # it has ended, or is another user's
            for each in (PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):  # it was closed
                    if os.path.samestat(each.stat(), self.file):
                        return True
        return False


def _read_lock(folder: int, file: str) -> _Lock | None:
    """Read a lock file; None if it is not one of memtopo."""
    try:
        fd, found = _open_lock(folder, file)
    except OSError:
        return None
    os.close(fd)
    return found


def remove_stale(endpoint: Endpoint) -> bool:
    """Remove what a dead holder left at an endpoint. Return whether no process has it; some files may remain."""
    try:
        folder = endpoint.open_folder()
    except FileNotFoundError:
        return True
    try:
        return _remove_stale_files(folder, endpoint)
    except OSError:
        return True
    except ExchangeError as error:
        return error.code != "held"
    finally:
        os.close(folder)


def _acquire(folder: int, endpoint: Endpoint, processes: Mapping[str, int]) -> int:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_BETWEEN)
        if not _remove_stale_files(folder, endpoint):
            continue
        lock = make_lock(folder, endpoint.lock, processes.items())
        if lock is None:
            continue
        with on_failure(os.close, lock), on_failure(os.unlink, endpoint.lock, dir_fd=folder):
            _remove_socket(folder, endpoint, ours=endpoint.name is not None)
        return lock
    if end := lost_layout(folder, endpoint):
        raise LayoutEnded(endpoint.layout, end)
    raise _already_held(endpoint, lock_owner(folder, endpoint.lock))


def make_lock(folder: int, file: str, processes: Iterable[tuple[str, int]] = ()) -> int | None:
    """Make a lock file, which is locked and complete when it appears; None if there is one. Raises `OSError`."""
    temporary = f".{secrets.token_hex(8)}.new"
    fd = os.open(temporary, _LOCK_FILE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        os.fchmod(fd, 0o600)
        namespace = pid_namespace()
        where = b"" if namespace is None else b" in pid namespace %d" % namespace
        shared = "".join(f"{label} {pid}\n" for label, pid in processes).encode()
        os.write(fd, b"%s%d%s\n%s" % (_MARKER, os.getpid(), where, shared))
        flock(fd, LOCK_EX | LOCK_NB)
        os.link(temporary, file, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    finally:
        os.unlink(temporary, dir_fd=folder)
    return fd


def _open_lock(folder: int, file: str) -> tuple[int, _Lock]:
    """Open a lock file of memtopo, and return its content. Raises `OSError` if it is anything else."""
    _check_owner(os.stat(file, dir_fd=folder, follow_symlinks=False))  # the opening of a device may change it
    fd = os.open(file, _LOCK_FILE, dir_fd=folder)
    with on_failure(os.close, fd):
        about = os.fstat(fd)
        _check_owner(about)
        text = os.pread(fd, _LONGEST_LOCK + 1, 0)
        found = _LOCK_TEXT.fullmatch(text)
        if not found or len(text) > _LONGEST_LOCK:
            raise PermissionError(1, "it is a file that memtopo did not write")
        visible = found[2] is None or int(found[2]) == pid_namespace()
        lines = (line.split() for line in found[3].decode().splitlines())
        processes = {label: int(pid) if visible else 0 for label, pid in lines}
        return fd, _Lock(int(found[1]) if visible else 0, processes, about)


def lock_stale(folder: int, file: str) -> int | None:
    """Lock an existing lock file; None if another process has locked it. Raises `OSError` if it is not memtopo's."""
    while True:
        fd, _ = _open_lock(folder, file)
        try:
            flock(fd, LOCK_EX | LOCK_NB)
            _check_links(os.fstat(fd))
            if _is_at(folder, file, os.fstat(fd)):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _temporary_name(lock: int) -> str:
    """Return a name for a socket that is not listening yet: by the lock's inode, it is unique in the folder."""
    return f".{os.fstat(lock).st_ino}.new"


def _remove_stale_files(folder: int, endpoint: Endpoint) -> bool:
    """Remove the sockets and the lock that a dead holder left. Return false if a process has the lock.

    Without a lock of memtopo, nothing is removed. Raises `OSError`, and `ExchangeError` if the socket is in use.
    """
    try:
        lock = lock_stale(folder, endpoint.lock)
    except FileNotFoundError:
        return True
    if lock is None:
        return False
    with closing_fd(lock):
        _unlink_socket(folder, _temporary_name(lock))
        _remove_socket(folder, endpoint, ours=True)
        os.unlink(endpoint.lock, dir_fd=folder)
    return True


def _remove_socket(folder: int, endpoint: Endpoint, *, ours: bool) -> None:
    """Remove the socket of a dead holder. Raises `ExchangeError` if a process has it open, or if it is not `ours`."""
    try:
        found = os.stat(endpoint.file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not _is_own_socket(found):
        raise ExchangeError("folder", f"{endpoint.path!r} exists, but is not a socket of this user", hint=_ELSEWHERE)
    if is_listening(folder, endpoint.file):  # its lock file was removed by hand
        raise _already_held(endpoint, None)
    if is_bound(folder, endpoint.file):
        hint = "its program must end first; or use another socket"
        raise ExchangeError("folder", f"socket {endpoint.path!r} is in use by another program", hint=hint)
    if not ours:
        message = f"socket {endpoint.path!r} exists, but memtopo did not create it"
        raise ExchangeError("folder", message, hint=_ELSEWHERE)
    os.unlink(endpoint.file, dir_fd=folder)


def _already_held(endpoint: Endpoint, pid: int | None) -> ExchangeError:
    what = f"layout {endpoint.name!r}" if endpoint.name else f"socket {endpoint.path!r}"
    command = f"'memtopo release {endpoint.name or f'--socket {endpoint.path}'}'"
    return ExchangeError(
        "held",
        f"{what} is already held by {'another process' if pid is None else process_name(pid)}",
        hint=f"{command} releases it; or use {'another name' if endpoint.name else 'another socket'}",
    )


def _check_owner(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(1, "it is not a file of this user")


def _check_links(found: os.stat_result) -> None:
    if found.st_nlink > 1:
        raise PermissionError(1, "it has other names")


def _is_own_socket(found: os.stat_result) -> bool:
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _unlink(folder: int, file: str, known: os.stat_result) -> None:
    """Remove a file that this process made, unless another one is at its name."""
    with suppress(FileNotFoundError):
        if _is_at(folder, file, known):
            os.unlink(file, dir_fd=folder)


def _unlink_socket(folder: int, file: str) -> None:
    with suppress(FileNotFoundError):
        if _is_own_socket(os.stat(file, dir_fd=folder, follow_symlinks=False)):
            os.unlink(file, dir_fd=folder)


def _is_at(folder: int, file: str, known: os.stat_result) -> bool:
    """Return whether a file is the one at a name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(file, dir_fd=folder, follow_symlinks=False), known)
    return False
