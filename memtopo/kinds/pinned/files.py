"""Files that other programs share: opened, compared with the declaration, and mapped."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress

from memtopo.common.errors import Exit, MemtopoError
from memtopo.common.mapped_files import map_shared, unmap
from memtopo.common.units import exact
from memtopo.kinds.layout import SharedFile


class UnsuitableFile(MemtopoError):
    """A file that cannot be mapped as declared."""

    exit_code = Exit.FAILED


def open_file(path: str, *, writable: bool) -> int:
    """Open a regular file by its path; nothing else is opened, since that may wait or have effects.

    Raises `UnsuitableFile`.
    """
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _require_regular(found, path)
            # By its descriptor: the path may name another file by now.
            mode = os.O_RDWR if writable else os.O_RDONLY
            return os.open(f"/proc/self/fd/{found}", mode | os.O_CLOEXEC | os.O_NONBLOCK)
        finally:
            os.close(found)
    except OSError as error:
        hint = _HINTS.get(type(error))
        message = f"{path!r} cannot be opened for {'reading and writing' if writable else 'reading'}: {_reason(error)}"
        raise UnsuitableFile(message, hint=hint) from error


def map_file(fd: int, name: str, offset: int, size: int, *, writable: bool) -> SharedFile:
    """Map `size` bytes of an open file from an offset on; `name` is that of messages. Raises `UnsuitableFile`.

    The file must have these bytes: an access behind its end would end the process by SIGBUS.
    """
    _require_regular(fd, name)
    if (end := offset + size) > (has := length(fd)):
        message = f"{name!r} has {exact(has)}, and {exact(end)} of it are declared"
        raise UnsuitableFile(message, hint="declare the size that the other program gave it")
    whole = -(-size // _unit(fd)) * _unit(fd)
    try:
        return SharedFile(fd, map_shared(fd, offset, whole, writable=writable), whole)
    except OSError as error:
        hint = "its writable mappings may be sealed off, or limited to reading: 'read_only: true'" if writable else None
        raise UnsuitableFile(f"{name!r} cannot be mapped: {_reason(error)}", hint=hint) from error


def unmap_file(mapped: SharedFile) -> None:
    """Unmap a file and close its descriptor. Raises `OSError` with both as they were."""
    unmap(mapped.address, mapped.size)
    with suppress(OSError):
        os.close(mapped.fd)


def length(fd: int) -> int:
    """Bytes of an open file at present."""
    return os.fstat(fd).st_size


def _unit(fd: int) -> int:
    """Unit of the length of a mapping: of huge pages in their file system, where it is the preferred block."""
    block = os.fstat(fd).st_blksize
    return mmap.PAGESIZE if block % mmap.PAGESIZE else block


def _require_regular(fd: int, name: str) -> None:
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        what = next((word for is_kind, word in _KINDS if is_kind(mode)), "no file")
        raise UnsuitableFile(f"{name!r} is {what}, and only memory in a regular file can be registered", hint=_FILE)


_FILE = "name a file in /dev/shm, or a memfd: /proc/PID/fd/N"
_HINTS = {
    PermissionError: "write 'read_only: true' if it may only be read",
    FileNotFoundError: "start the program that makes it first",
}
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISLNK, "a link"),
)  # fmt: skip


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
