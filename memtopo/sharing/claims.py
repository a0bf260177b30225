"""Taking a layout's name: a lock that no two processes have, a socket beside it, and neither left after a death."""

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
from memtopo.sharing.sockets import answers

_BACKLOG = 128
# A client that cleans up has the lock for some microseconds; a holder that begins just then tries again.
_TRIES, _BETWEEN = 20, 0.02


class Claim:
    """A name that is ours until this is closed; nobody else can hold a layout under it.

    Take it before anything is built, so that a second holder fails at once, and close it when all is taken down.
    """

    def __init__(self, place: Endpoint, folder: int, lock: int) -> None:
        self.place = place
        self._folder, self._lock = folder, lock
        self._farewells: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, *, mode: int = 0o600) -> socket.socket:
        """A socket at our place that listens from the moment at which it is seen there. Raises `ExchangeError`."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # A path may have 108 bytes, a name alone more than that: it gets a short one first.
            unseen = hidden(self._lock)
            os.fchmod(sock.fileno(), mode & 0o600)  # what bind gives the file, so that it is never open to others
            sock.bind(f"/proc/self/fd/{self._folder}/{unseen}")
            os.chmod(unseen, mode, dir_fd=self._folder)
            sock.listen(_BACKLOG)
            os.rename(unseen, self.place.file, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            sock.close()
            raise ExchangeError("folder", f"socket {self.place.path!r} cannot be made: {reason(error)}") from error
        return sock

    def hide(self) -> None:
        """Take the socket out of its folder: nobody new finds it."""
        with suppress(FileNotFoundError):
            os.unlink(self.place.file, dir_fd=self._folder)

    def keep_open(self, sock: socket.socket) -> None:
        """Keep a connection open until this is closed: its end tells who asked for the release that all is gone."""
        self._farewells.append(sock)

    @property
    def kept_open(self) -> int:
        """How many connections are kept open so."""
        return len(self._farewells)

    def close(self) -> None:
        """Give the name back: socket and lock are gone."""
        if self._lock < 0:
            return
        self.hide()
        with suppress(FileNotFoundError):
            os.unlink(self.place.lock, dir_fd=self._folder)
        os.close(self._lock)
        os.close(self._folder)
        self._lock = self._folder = -1
        for sock in self._farewells:
            sock.close()


def claim(place: Endpoint) -> Claim:
    """Take a place for a layout. Raises `ExchangeError` where another process has it, or its folder is not ours."""
    try:
        folder = place.open(make=True)
    except FileNotFoundError as error:
        raise ExchangeError("folder", f"folder {place.folder!r} for a socket is not there") from error
    try:
        lock = _take(folder, place)
        try:
            clear(folder, place, lock)
            sign(lock)
        except BaseException:
            os.unlink(place.lock, dir_fd=folder)
            os.close(lock)
            raise
    except OSError as error:
        os.close(folder)
        raise ExchangeError("folder", f"lock of {place.path!r} cannot be had: {reason(error)}") from error
    except BaseException:
        os.close(folder)
        raise
    return Claim(place, folder, lock)


def _take(folder: int, place: Endpoint) -> int:
    for turn in range(_TRIES):
        if turn:
            time.sleep(_BETWEEN)
        if (lock := lock_of(folder, place.lock, make=True)) is not None:
            return lock
    raise held(place, holder(folder, place.lock))


_LOCK_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def lock_of(folder: int, file: str, *, make: bool) -> int | None:
    """The lock, taken; None where another process has it. Raises `OSError` where it is not there, or no such file."""
    while True:
        fd = os.open(file, _LOCK_FILE | os.O_RDWR | (os.O_CREAT if make else 0), 0o600, dir_fd=folder)
        try:
            found = os.fstat(fd)
            _vet(found)
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


def holder(folder: int, file: str) -> int | None:
    """The process that signed a lock, where it did."""
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


def sign(lock: int) -> None:
    """Let a lock say that this process has it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def hidden(lock: int) -> str:
    """A socket's name before it is seen, out of the lock's number, which no two locks in a folder have."""
    return f".{os.fstat(lock).st_ino}.new"


def _vet(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(1, "it is not a file of this user")


def sweep(place: Endpoint) -> bool:
    """Remove what a dead holder left at a place. Whether nobody lives there; what cannot be removed may stay."""
    try:
        folder = place.open()
    except FileNotFoundError:
        return True
    try:
        lock = lock_of(folder, place.lock, make=_there(folder, place.file))
        if lock is None:
            return False
        try:
            clear(folder, place, lock)
            os.unlink(place.lock, dir_fd=folder)
        finally:
            os.close(lock)
    except OSError:
        return True
    except ExchangeError as error:
        return error.code != "held"
    finally:
        os.close(folder)
    return True


def clear(folder: int, place: Endpoint, lock: int) -> None:
    """Remove the sockets that a dead holder left. Raises `ExchangeError` where somebody still answers there."""
    with suppress(FileNotFoundError):
        os.unlink(hidden(lock), dir_fd=folder)
    try:
        found = os.stat(place.file, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise ExchangeError("folder", f"{place.path!r} is there, and it is no socket of this user")
    if answers(folder, place.file):  # a lock that was removed by hand says nothing
        raise held(place, None)
    os.unlink(place.file, dir_fd=folder)


def held(place: Endpoint, pid: int | None) -> ExchangeError:
    """An error for a place that another process has."""
    what = f"layout {place.name!r}" if place.name else f"socket {place.path!r}"
    command = f"'memtopo release {place.name or f'--socket {place.path}'}'"
    return ExchangeError(
        "held",
        f"{what} is already held by {f'process {pid}' if pid else 'another process'}",
        hint=f"{command} lets it go; {'another name' if place.name else '--socket'} goes beside it",
    )


def _there(folder: int, file: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(file, dir_fd=folder, follow_symlinks=False)
        return True
    return False
