"""Claims of endpoints: a lock that one process holds, a socket beside it, and removal of what dead processes left.

The lock is the lock on the file, not its existence: a lock file that no process has locked is stale. After locking a
file, a process checks that it is still the one at that name, since the previous owner may just have removed it.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from typing import Self

from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.errors import ExchangeError, reason
from memtopo.sharing.sockets import is_bound, is_listening

_BACKLOG = 128
# A client that removes stale files holds the lock for some microseconds; a holder that starts just then tries again.
_TRIES, _BETWEEN = 20, 0.02
_LOCK_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Claim:
    """An endpoint that belongs to this process until `close`; no other process can hold a layout there.

    Claim it before anything is built, so that a second holder fails at once, and close it after everything is torn
    down.
    """

    def __init__(self, endpoint: Endpoint, folder: int, lock: int) -> None:
        self.endpoint = endpoint
        self._folder, self._lock = folder, lock
        self._kept_open: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, *, mode: int = 0o600) -> socket.socket:
        """Create the socket, which listens from the moment at which it appears. Raises `ExchangeError`."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # A path is limited to 108 bytes, and a name alone may be longer: the socket is renamed to it.
            temporary = _temporary_name(self._lock)
            os.fchmod(sock.fileno(), mode & 0o600)  # the mode that bind() gives the file, which others never may open
            sock.bind(f"/proc/self/fd/{self._folder}/{temporary}")
            os.chmod(temporary, mode, dir_fd=self._folder)
            sock.listen(_BACKLOG)
            os.rename(temporary, self.endpoint.file, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            sock.close()
            raise ExchangeError("folder", f"socket {self.endpoint.path!r} cannot be made: {reason(error)}") from error
        return sock

    def unlink_socket(self) -> None:
        """Remove the socket from its folder: new clients do not find it."""
        with suppress(FileNotFoundError):
            os.unlink(self.endpoint.file, dir_fd=self._folder)

    def keep_open(self, sock: socket.socket) -> None:
        """Keep a connection open until `close`: its end reports to the client that everything is torn down."""
        self._kept_open.append(sock)

    @property
    def kept_open(self) -> int:
        """Number of connections that are kept open until `close`."""
        return len(self._kept_open)

    def close(self) -> None:
        """Remove socket and lock."""
        if self._lock < 0:
            return
        self.unlink_socket()
        with suppress(FileNotFoundError):
            os.unlink(self.endpoint.lock, dir_fd=self._folder)
        os.close(self._lock)
        os.close(self._folder)
        self._lock = self._folder = -1
        for sock in self._kept_open:
            sock.close()


def claim(endpoint: Endpoint) -> Claim:
    """Claim an endpoint. Raises `ExchangeError` if another process has it, or if its folder cannot be trusted."""
    try:
        folder = endpoint.open_folder(make=True)
    except FileNotFoundError as error:
        raise ExchangeError("folder", f"folder {endpoint.folder!r} for a socket does not exist") from error
    try:
        lock = _acquire(folder, endpoint)
        try:
            _remove_stale_sockets(folder, endpoint, lock)
            _write_owner(lock)
        except BaseException:
            os.unlink(endpoint.lock, dir_fd=folder)
            os.close(lock)
            raise
    except OSError as error:
        os.close(folder)
        raise ExchangeError("folder", f"lock of {endpoint.path!r} cannot be acquired: {reason(error)}") from error
    except BaseException:
        os.close(folder)
        raise
    return Claim(endpoint, folder, lock)


def lock_owner(folder: int, file: str) -> int | None:
    """Return the process that a lock file names, if it does."""
    try:
        fd = os.open(file, _LOCK_FILE | os.O_RDONLY, dir_fd=folder)
    except OSError:
        return None
    try:
        text = os.read(fd, 20)
    except OSError:
        return None
    finally:
        os.close(fd)
    return int(text) if text.strip().isdigit() else None


def remove_stale(endpoint: Endpoint) -> bool:
    """Remove what a dead holder left at an endpoint. Return whether no process has it; some files may remain."""
    try:
        folder = endpoint.open_folder()
    except FileNotFoundError:
        return True
    try:
        lock = _lock(folder, endpoint.lock, make=_exists(folder, endpoint.file))
        if lock is None:
            return False
        try:
            _remove_stale_sockets(folder, endpoint, lock)
            os.unlink(endpoint.lock, dir_fd=folder)
        finally:
            os.close(lock)
    except OSError:
        return True
    except ExchangeError as error:
        return error.code != "held"
    finally:
        os.close(folder)
    return True


def _acquire(folder: int, endpoint: Endpoint) -> int:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_BETWEEN)
        if (lock := _lock(folder, endpoint.lock, make=True)) is not None:
            return lock
    raise _already_held(endpoint, lock_owner(folder, endpoint.lock))


def _lock(folder: int, file: str, *, make: bool) -> int | None:
    """Lock a file; None if another process has locked it. Raises `OSError` if it does not exist or is another's."""
    while True:
        fd = os.open(file, _LOCK_FILE | os.O_RDWR | (os.O_CREAT if make else 0), 0o600, dir_fd=folder)
        try:
            found = os.fstat(fd)
            _check_owner(found)
            flock(fd, LOCK_EX | LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(file, dir_fd=folder, follow_symlinks=False), found):
                    return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _write_owner(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _temporary_name(lock: int) -> str:
    """Return a name for a socket that is not listening yet: by the lock's inode, it is unique in the folder."""
    return f".{os.fstat(lock).st_ino}.new"


def _remove_stale_sockets(folder: int, endpoint: Endpoint, lock: int) -> None:
    """Remove the sockets that a dead holder left. Raises `ExchangeError` if a process still listens there."""
    with suppress(FileNotFoundError):
        os.unlink(_temporary_name(lock), dir_fd=folder)
    try:
        found = os.stat(endpoint.file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise ExchangeError("folder", f"{endpoint.path!r} exists, and it is no socket of this user")
    if is_listening(folder, endpoint.file):  # its lock file was removed by hand
        raise _already_held(endpoint, None)
    if is_bound(folder, endpoint.file):
        hint = "its program must end first; or use another --socket"
        raise ExchangeError("folder", f"socket {endpoint.path!r} is in use by another program", hint=hint)
    os.unlink(endpoint.file, dir_fd=folder)


def _already_held(endpoint: Endpoint, pid: int | None) -> ExchangeError:
    what = f"layout {endpoint.name!r}" if endpoint.name else f"socket {endpoint.path!r}"
    command = f"'memtopo release {endpoint.name or f'--socket {endpoint.path}'}'"
    return ExchangeError(
        "held",
        f"{what} is already held by {f'process {pid}' if pid else 'another process'}",
        hint=f"{command} releases it; or use {'another name' if endpoint.name else 'another --socket'}",
    )


def _check_owner(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(1, "it is not a file of this user")


def _exists(folder: int, file: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(file, dir_fd=folder, follow_symlinks=False)
        return True
    return False
