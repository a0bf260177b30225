"""File descriptors that are handed over: the driver closes what it took, and some of what it refused (fact 54)."""

from __future__ import annotations

import os
from contextlib import suppress

from memtopo.driver.sim.files import Files, Tag
from memtopo.driver.sim.refusal import invalid


def checked(fd: int) -> int:
    """A number that can be a descriptor's, be it negative; refuses what the driver's parameter cannot hold."""
    if not isinstance(fd, int) or not -(1 << 31) <= fd < 1 << 31:
        raise invalid("that is no file descriptor")
    return fd


def opened(fd: int, files: Files, *kinds: str) -> tuple[int, Tag] | None:
    """A descriptor of one's own for what is handed over, with its tag; None of what is nothing of these kinds."""
    return files.adopt(f"/proc/self/fd/{fd}", *kinds)


def closed(fd: int) -> None:
    """Close a descriptor that was handed over, if it is one."""
    with suppress(OSError):
        os.close(fd)
