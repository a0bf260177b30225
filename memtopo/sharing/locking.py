"""Locks: a file that one process has locked, and that says which one.

The lock is the file's, not its being there: one that nobody has locked is what a dead holder left. Whoever has locked
it looks whether the file is still the one at that name, since the holder before may just have removed it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock

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
