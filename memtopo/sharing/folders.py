"""Temporary folders for the sockets of programs, and removal of those that dead processes left.

A lock in each folder belongs to the process that made it. A folder without a lock of memtopo is left alone.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from memtopo.sharing.claims import lock_stale, make_lock
from memtopo.sharing.sockets import abandon_in_children

_PREFIX = "memtopo-program-"
_LOCK = "owner.lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o700


class PrivateFolder:
    """A folder in the temporary directory that is closed to other users, until `remove`. Raises `OSError`."""

    def __init__(self) -> None:
        _remove_stale()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = -1
        try:
            self._lock = _locked(self.path)
        except BaseException:
            self.remove()
            raise
        abandon_in_children(self)

    def remove(self) -> None:
        """Remove the folder with its content, as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.abandon()

    def abandon(self) -> None:
        """Close the lock, and leave the folder, as for a forked child."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _locked(path: str) -> int:
    folder = os.open(path, _FOLDER)
    try:
        lock = make_lock(folder, _LOCK)
    finally:
        os.close(folder)
    if lock is None:
        raise FileExistsError(errno.EEXIST, "another process has its lock")
    return lock


def _remove_stale() -> None:
    """Remove the folders of dead processes of this user."""
    with suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_if_stale(entry.path)


def _remove_if_stale(path: str) -> None:
    folder = os.open(path, _FOLDER)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != _PRIVATE:
            return
        lock = lock_stale(folder, _LOCK)
    finally:
        os.close(folder)
    if lock is not None:
        shutil.rmtree(Path(path), ignore_errors=True)
        os.close(lock)
