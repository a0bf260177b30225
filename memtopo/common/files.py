"""Paths that a user names for output: no link of another user is followed, and no reader of a pipe waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_MOST_LINKS = 40
"""Links that lead to one file, as for the kernel (path_resolution(7))."""


def output_path(path: str) -> str:
    """Path of the file that links at the end of a path lead to.

    Each belongs to this user or to root: in a shared folder anybody may put a link to a file of this user. Raises
    `OSError`.
    """
    for _ in range(_MOST_LINKS):
        if (target := _target(path)) is None:
            return path
        path = str(Path(path).parent / target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def open_output(path: str | Path, flags: int, *, follow: bool = True) -> int:
    """Open a regular file or a device for output, with mode 0600 if it is made, at `output_path` or as it is named.

    Raises `OSError`, also for anything else, such as a pipe.
    """
    flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        fd = os.open(output_path(os.fspath(path)) if follow else path, flags, 0o600)
    except OSError as error:
        raise _no_file() if error.errno == errno.ENXIO else error from error
    kind = os.fstat(fd).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):
        os.close(fd)
        raise _no_file()
    os.set_blocking(fd, True)
    return fd


def _target(path: str) -> str | None:
    """Target of a link; None for anything else."""
    try:
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        about = os.fstat(found)
        if not stat.S_ISLNK(about.st_mode):
            return None
        if about.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, f"{path!r} is a link of uid {about.st_uid}")
        return os.readlink("", dir_fd=found)
    finally:
        os.close(found)


def _no_file() -> OSError:
    return OSError(errno.EINVAL, "it is a pipe or a socket, and no file")
