"""What another API, such as Vulkan, does on the simulator: memory and semaphores that it makes and uses by descriptors.

No driver is needed: what a descriptor is, it tells by itself, in every process that has it. Each is close-on-exec and
the caller's to close; what it stands for lives as long as anybody has it open. All raise `ValueError` where one is
something else, and `OSError` where the system has no more.
"""

from __future__ import annotations

import os
import time

from memtopo.driver.sim import semaphores
from memtopo.driver.sim.shared_files import Tag, make, nonce, read_tag

GRAIN = 64 << 10
"""Bytes that memory is a multiple of: what is asked for is rounded up, as Vulkan's was (fact 53)."""

_NOWHERE = "gpu 0"
_GRANULE = 2 << 20  # of the mappings that it may get as a chunk (fact 59)
_UUID = 16  # bytes
_PAUSE = 0.001  # seconds


def allocate(gpu_uuid: bytes, size: int) -> int:
    """Memory of `size` bytes, on the GPU with this UUID, that reads as zero: a descriptor of it.

    The same descriptor may be handed on again and again; each who imports a copy sees the same bytes.
    """
    if size <= 0 or len(gpu_uuid) != _UUID:
        raise ValueError(f"memory has more than 0 bytes, on a GPU whose UUID has {_UUID}")
    return make(Tag("memory", -(-size // GRAIN) * GRAIN, _GRANULE, f"gpu {gpu_uuid.hex()}", nonce()))


def make_semaphore(*, timeline: bool, value: int = 0) -> int:
    """A semaphore: a timeline that begins at `value`, or a binary one, signalled where `value` is not 0."""
    fd = make(Tag(semaphores.TIMELINE if timeline else semaphores.BINARY, semaphores.SIZE, 1, _NOWHERE, nonce()))
    if value:
        signal(fd, value)
    return fd


def signal(fd: int, value: int = 1) -> None:
    """Set a timeline to a value, or signal a binary semaphore."""
    semaphores.signal(fd, _semaphore(fd), value)


def counter(fd: int) -> int:
    """A timeline's value; of a binary semaphore 1 where it is signalled, else 0."""
    _semaphore(fd)
    return semaphores.held(fd)


def wait(fd: int, value: int = 1, timeout: float = 10.0) -> bool:
    """Wait for a timeline to reach a value, or take a binary semaphore's signal; False once `timeout` seconds are over.

    It looks every millisecond: nobody is told of what others write into a file.
    """
    kind, deadline = _semaphore(fd), time.monotonic() + timeout
    while not semaphores.taken(fd, kind, value):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)
    return True


def read(fd: int, offset: int, count: int) -> bytes:
    """Bytes of memory, or of a chunk that a simulated driver exported (fact 59)."""
    _check_inside(fd, offset, count)
    return os.pread(fd, count, offset)


def write(fd: int, offset: int, data: bytes) -> None:
    """Put bytes into memory, or into a chunk that a simulated driver exported (fact 59)."""
    _check_inside(fd, offset, len(data))
    os.pwrite(fd, data, offset)


def _semaphore(fd: int) -> str:
    kind = _tag(fd).kind
    if kind not in {semaphores.TIMELINE, semaphores.BINARY}:
        raise ValueError(f"the descriptor is no semaphore's but that of a simulated {kind}")
    return kind


def _check_inside(fd: int, offset: int, count: int) -> None:
    tag = _tag(fd)
    if tag.kind not in {"memory", "chunk"}:
        raise ValueError(f"the descriptor is not memory's but that of a simulated {tag.kind}")
    if offset < 0 or count < 0 or offset + count > tag.size:
        raise ValueError(f"the memory has {tag.size} bytes")


def _tag(fd: int) -> Tag:
    tag = read_tag(f"/proc/self/fd/{fd}")
    if tag is None:
        raise ValueError("the descriptor is nothing of a simulator's")
    return tag
