"""From a path or bytes to a document. Nothing here raises; a file that cannot be read is a document with one fault."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path

from memtopo.common.collector import collector_paused
from memtopo.diagnostics.model import Diagnostic
from memtopo.language.characters import check, decode
from memtopo.language.document import Document
from memtopo.language.limits import LARGEST_FILE, Refused
from memtopo.language.parser import Walk
from memtopo.language.positions import Lines

_BLOCK = 1 << 20
_STDIN = 0
_OTHERS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFSOCK: "is a socket",
}


def read_file(path: str | Path, *, name: str | None = None, patience: float = 10.0) -> Document:
    """Read a file, or a pipe for `patience` seconds at most; `name` stands for it in messages.

    Devices and directories are refused, and so is whatever has more than `LARGEST_FILE` bytes.
    """
    shown = str(path) if name is None else name
    return _read(lambda: _bytes(path, patience), shown)


def read_stdin(*, patience: float = 10.0) -> Document:
    """Read standard input: a terminal until its user ends it, anything else for `patience` seconds at most."""
    return _read(lambda: _drain(_STDIN, None if os.isatty(_STDIN) else time.monotonic() + patience), "<stdin>")


def _read(take: Callable[[], bytes], shown: str) -> Document:
    try:
        data = take()
    except Refused as refused:
        return Document(shown, faults=(refused.fault,))
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        return Document(shown, faults=(Diagnostic("MT001", f"the file cannot be read: {reason}"),))
    return read_text(data, shown)


def read_text(data: bytes, name: str) -> Document:
    """Read the bytes of a spec; `name` stands for them in messages."""
    if len(data) > LARGEST_FILE:
        return Document(name, faults=(_too_large().fault,))
    text, fault = decode(data)
    lines = Lines(text)
    if fault:
        return Document(name, text, faults=(fault,), lines=lines)
    try:
        check(text)
        with collector_paused():
            walk = Walk(text, lines)
            root = walk.document()
    except Refused as refused:
        return Document(name, text, faults=(refused.fault,), lines=lines)
    return Document(name, text, root, walk.faults.told(), frozenset(walk.left_out), walk.places, lines)


def _bytes(path: str | Path, patience: float) -> bytes:
    # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if stat.S_ISFIFO(status.st_mode):
            return _drain(fd, time.monotonic() + patience)
        if not stat.S_ISREG(status.st_mode):
            what = _OTHERS.get(stat.S_IFMT(status.st_mode), "is no file")
            raise Refused(Diagnostic("MT001", f"{what}, and a spec is a file"))
        if status.st_size > LARGEST_FILE:
            raise _too_large()
        return _drain(fd, None)
    finally:
        os.close(fd)


def _drain(fd: int, deadline: float | None) -> bytes:
    """Everything that a file gives, or a pipe until its deadline, but not a byte more than one over the limit."""
    blocks: list[bytes] = []
    size = 0
    while size <= LARGEST_FILE:
        if deadline is not None:
            _await(fd, deadline)
        if not (block := os.read(fd, min(_BLOCK, LARGEST_FILE + 1 - size))):
            return b"".join(blocks)
        blocks.append(block)
        size += len(block)
    raise _too_large()


def _await(fd: int, deadline: float) -> None:
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if left <= 0 or not poll.poll(left * 1000):
        raise Refused(Diagnostic("MT001", "the pipe did not end in time", help="write the spec to a file first"))


def _too_large() -> Refused:
    return Refused(Diagnostic("MT002", f"the file has more than {LARGEST_FILE >> 20} MiB"))
