"""Simulation of an external API such as Vulkan: memory and semaphores, created and used by file descriptors.

No driver is needed, since a descriptor identifies its object in every process. Descriptors are close-on-exec and the
caller's to close; an object lives as long as any process has it open. All functions raise `ValueError` for a descriptor
of another kind, and `OSError` if the system has no descriptors or memory left.
"""

from __future__ import annotations

import os
import time
from typing import Self

from memtopo.common.files import closing_fd
from memtopo.drivers.sim import external
from memtopo.drivers.sim.shared_files import Tag, is_dma_buf, make, nonce, read_tag

GRAIN = 64 << 10
"""Granularity of memory in bytes; sizes are rounded up, as Vulkan's are (fact 53)."""

_NOWHERE = "gpu 0"
_GRANULE = 2 << 20  # of mappings of this memory when it is imported as a chunk (fact 59)
_UUID = 16  # bytes
_PAUSE = 0.001  # seconds


def allocate(gpu_uuid: bytes, size: int) -> int:
    """Allocate `size` bytes of zeros on the GPU with this UUID; returns a descriptor.

    The descriptor may be passed on any number of times; all importers share the same bytes.
    """
    if size <= 0 or len(gpu_uuid) != _UUID:
        raise ValueError(f"memory has more than 0 bytes, on a GPU whose UUID has {_UUID}")
    return make(Tag("memory", -(-size // GRAIN) * GRAIN, _GRANULE, f"gpu {gpu_uuid.hex()}", nonce()))


def make_semaphore(*, timeline: bool, value: int = 0) -> int:
    """Create a timeline that begins at `value`, or a binary semaphore, signalled if `value` is not 0."""
    fd = make(Tag(external.TIMELINE if timeline else external.BINARY, external.SIZE, 1, _NOWHERE, nonce()))
    if value:
        signal(fd, value)
    return fd


def signal(fd: int, value: int = 1) -> None:
    """Set a timeline to a value, or signal a binary semaphore."""
    external.signal(fd, _semaphore(fd), value)


def counter(fd: int) -> int:
    """Value of a timeline; for a binary semaphore 1 if it is signalled, else 0."""
    _semaphore(fd)
    return external.payload(fd)


def wait(fd: int, value: int = 1, timeout: float = 10.0) -> bool:
    """Wait for a timeline to reach a value, or consume a binary semaphore's signal; False after `timeout` seconds.

    Polls every millisecond, since writes to a file by other processes cause no notification.
    """
    kind, deadline = _semaphore(fd), time.monotonic() + timeout
    while not external.try_wait(fd, kind, value):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)
    return True


def read(fd: int, offset: int, count: int) -> bytes:
    """Read bytes of memory, or of a chunk or dma-buf that a simulated driver exported (facts 59, 83)."""
    _check_inside(fd, offset, count)
    return os.pread(fd, count, offset)


def write(fd: int, offset: int, data: bytes) -> None:
    """Write bytes to memory, or to a chunk or dma-buf that a simulated driver exported (facts 59, 83)."""
    _check_inside(fd, offset, len(data))
    # The descriptor of a dma-buf is read-only.
    with closing_fd(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)) as own:
        os.pwrite(own, data, offset)


def _semaphore(fd: int) -> str:
    kind = _tag(fd).kind
    if kind not in {external.TIMELINE, external.BINARY}:
        raise ValueError(f"the descriptor belongs to a simulated {kind}, not to a semaphore")
    return kind


def _check_inside(fd: int, offset: int, count: int) -> None:
    tag = _tag(fd)
    if tag.kind not in {"memory", "chunk"} and not is_dma_buf(fd):
        raise ValueError(f"the descriptor belongs to a simulated {tag.kind}, not to memory")
    if offset < 0 or count < 0 or offset + count > tag.size:
        raise ValueError(f"the memory has {tag.size} bytes")


def _tag(fd: int) -> Tag:
    tag = read_tag(f"/proc/self/fd/{fd}")
    if tag is None:
        raise ValueError("the descriptor does not belong to a simulated object")
    return tag


class SimExternalApi:
    """External API on the GPU with this UUID."""

    def __init__(self, uuid: bytes) -> None:
        self._uuid = uuid
        self._objects: list[SimExternalObject] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._objects:
            each.free()

    def allocate(self, size: int, *, dedicated: bool = False) -> SimExternalObject:
        del dedicated  # the simulator makes no difference
        return self.adopt(allocate(self._uuid, size), size)

    def adopt(self, fd: int, size: int) -> SimExternalObject:
        self._objects.append(SimExternalObject(fd, size))
        return self._objects[-1]

    def timeline(self, value: int = 0) -> SimExternalObject:
        return self.adopt(make_semaphore(timeline=True, value=value), external.SIZE)

    def binary(self) -> SimExternalObject:
        return self.adopt(make_semaphore(timeline=False), external.SIZE)


class SimExternalObject:
    """Memory or a semaphore of the external API, kept open until it is freed; `whole` is its size in bytes."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self.whole = fd, size

    def fd(self) -> int:
        return os.dup(self._fd)

    def free(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, offset: int, count: int) -> bytes:
        return read(self._fd, offset, count)

    def write(self, offset: int, data: bytes) -> None:
        write(self._fd, offset, data)

    @property
    def counter(self) -> int:
        return counter(self._fd)

    def signal(self, value: int = 1) -> None:
        signal(self._fd, value)

    def wait(self, value: int, seconds: float) -> bool:
        return wait(self._fd, value, seconds)
