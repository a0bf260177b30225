"""Taking a layout's name: a lock that no two processes have, a socket beside it, and neither left after a death."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Self

from memtopo.sharing.faults import ExchangeError, reason
from memtopo.sharing.locking import hidden, holder, lock_of, sign
from memtopo.sharing.places import Place
from memtopo.sharing.sweeping import clear, held

_BACKLOG = 128
# A client that cleans up has the lock for some microseconds; a holder that begins just then tries again.
_TRIES, _BETWEEN = 20, 0.02


class Claim:
    """A name that is ours until this is closed; nobody else can hold a layout under it.

    Take it before anything is built, so that a second holder fails at once, and close it when all is taken down.
    """

    def __init__(self, place: Place, folder: int, lock: int) -> None:
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

    def part_from(self, sock: socket.socket) -> None:
        """Keep a connection open until this is closed: its end tells who asked for the release that all is gone."""
        self._farewells.append(sock)

    @property
    def farewells(self) -> int:
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


def claim(place: Place) -> Claim:
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


def _take(folder: int, place: Place) -> int:
    for turn in range(_TRIES):
        if turn:
            time.sleep(_BETWEEN)
        if (lock := lock_of(folder, place.lock, make=True)) is not None:
            return lock
    raise held(place, holder(folder, place.lock))
