"""Files that a user names: bounded reads, no endless wait for a pipe, and no output through a link of another user."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 10.0
"""Seconds that the other end of a pipe has, by default."""

_READER, _INTERVAL = 2.0, 0.02
"""Seconds until a pipe has a reader, and between two looks."""

_BLOCK = 1 << 20
_FILE_TYPES = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFSOCK: "is a socket",
}
_MOST_LINKS = 40
"""Links that lead to one file, as for the kernel (path_resolution(7))."""


class TooLarge(OSError):
    """A file with more bytes than are read."""


class NotAFile(OSError):
    """A path of neither a regular file nor a pipe."""


class NotInTime(OSError):
    """A pipe whose other end does not write, or read, in time."""


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Yield a descriptor, which is closed at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def text_of(file: Path) -> str:
    """Text of a small file, such as one of the kernel; empty if it cannot be read."""
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def read_file(path: str | Path, most: int, patience: float = PATIENCE) -> bytes:
    """Read a regular file, or a pipe for at most `patience` seconds, of at most `most` bytes.

    Raises `OSError`: `TooLarge`, `NotAFile`, `NotInTime`.
    """
    # Without O_NONBLOCK, opening a pipe without a writer would block forever.
    with closing_fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)) as fd:
        status = os.fstat(fd)
        if stat.S_ISFIFO(status.st_mode):
            return read_descriptor(fd, most, time.monotonic() + patience)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFile(errno.EINVAL, _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "is no file"))
        if status.st_size > most:
            raise _too_large(most)
        return read_descriptor(fd, most, None)


def read_descriptor(fd: int, most: int, deadline: float | None) -> bytes:
    """Read all bytes of a file, or of a pipe until its deadline. Raises `TooLarge` and `NotInTime`."""
    blocks: list[bytes] = []
    size = 0
    while size <= most:
        if deadline is not None and not _ready(fd, select.POLLIN, deadline):
            raise NotInTime(errno.ETIMEDOUT, "the pipe did not end in time")
        if not (block := os.read(fd, min(_BLOCK, most + 1 - size))):
            return b"".join(blocks)
        blocks.append(block)
        size += len(block)
    raise _too_large(most)


def write_pipe(path: str, data: bytes, patience: float = PATIENCE) -> None:
    """Write to a pipe or a device, whose reader has `patience` seconds for each part. Raises `OSError`.

    A pipe without a reader gets one within two seconds: both ends may have been started at once.
    """
    until = time.monotonic() + _READER
    while True:
        try:
            opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() >= until:
                raise
        time.sleep(_INTERVAL)  # the kernel tells no writer of a reader that opens the pipe
    with closing_fd(opened) as fd:
        while data:
            if not _ready(fd, select.POLLOUT, time.monotonic() + patience):
                raise NotInTime(errno.ETIMEDOUT, "nobody reads the pipe")
            data = data[os.write(fd, data) :]


def output_path(path: str) -> str:
    """Path of the file that links at the end of a path lead to.

    Each belongs to this user or to root: in a shared folder anybody may put a link to a file of this user. Raises
    `OSError`.
    """
    for _ in range(_MOST_LINKS):
        try:
            opened = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return path
        with closing_fd(opened) as found:
            about = os.fstat(found)
            if not stat.S_ISLNK(about.st_mode):
                return path
            if about.st_uid not in (0, os.geteuid()):
                raise PermissionError(errno.EPERM, f"{path!r} is a link of uid {about.st_uid}")
            path = str(Path(path).parent / os.readlink("", dir_fd=found))
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


def _no_file() -> OSError:
    return OSError(errno.EINVAL, "it is a pipe or a socket, and no file")


def _too_large(most: int) -> TooLarge:
    return TooLarge(errno.EFBIG, f"it has more than {most >> 20} MiB")


def _ready(fd: int, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    left = deadline - time.monotonic()
    return left > 0 and bool(poll.poll(left * 1000))
