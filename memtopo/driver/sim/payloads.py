"""What a semaphore holds: 8 bytes of a file, which everybody who shares it reads and writes (fact 56)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 8
"""Bytes: a timeline's value, or of a binary semaphore whether it is signalled."""

TIMELINE, BINARY = "timeline", "binary"


def held(fd: int) -> int:
    """A timeline's value; of a binary semaphore 1 where it is signalled, else 0."""
    return int.from_bytes(os.pread(fd, SIZE, 0), "little")


def signal(fd: int, kind: str, value: int) -> None:
    """Set a timeline's value, be it to a lower one; of a binary semaphore the value is ignored."""
    if kind == TIMELINE:
        os.pwrite(fd, value.to_bytes(SIZE, "little"), 0)
        return
    with _alone(fd) as own:
        os.pwrite(own, (1).to_bytes(SIZE, "little"), 0)


def taken(fd: int, kind: str, value: int) -> bool:
    """Whether a wait is over. It takes a binary semaphore's signal away with it, so only one of several waits is."""
    if kind == TIMELINE:
        return held(fd) >= value
    with _alone(fd) as own:
        signalled = held(own) != 0
        if signalled:
            os.pwrite(own, bytes(SIZE), 0)
        return signalled


@contextmanager
def _alone(fd: int) -> Iterator[int]:
    """The file, while no other thread or process changes it."""
    # Opened anew: a lock belongs to whoever opened the file, and descriptors that were passed on share that.
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_EX)
        yield own
    finally:
        os.close(own)
