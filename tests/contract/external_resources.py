"""Context managers of imported memory, buffers and semaphores of another API: Vulkan, or its simulation."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from memtopo.driver.kernels import ExternalApiSemaphore
from memtopo.driver.protocol import Driver
from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType

OPAQUE = MemoryHandleType.OPAQUE_FD
BINARY, TIMELINE = SemaphoreHandleType.OPAQUE_FD, SemaphoreHandleType.TIMELINE_FD
UNKNOWN = "CUDA_ERROR_UNKNOWN"
PATIENCE = 20.0  # seconds


@contextmanager
def external(driver: Driver, fd: int, size: int, *, dedicated: bool = False) -> Iterator[int]:
    """Imported memory of another API; the driver owns the descriptor."""
    memory = driver.import_external_memory(fd, OPAQUE, size, dedicated=dedicated)
    try:
        yield memory
    finally:
        driver.destroy_external_memory(memory)


@contextmanager
def buffer(driver: Driver, memory: int, offset: int, size: int) -> Iterator[int]:
    """The address of a buffer in imported memory."""
    address = driver.external_memory_get_mapped_buffer(memory, offset, size)
    try:
        yield address
    finally:
        driver.mem_free(address)


@contextmanager
def whole(driver: Driver, fd: int, size: int) -> Iterator[int]:
    """The address of imported memory as one buffer."""
    with external(driver, fd, size) as memory, buffer(driver, memory, 0, size) as address:
        yield address


@contextmanager
def semaphore(driver: Driver, fd: int, kind: SemaphoreHandleType = TIMELINE) -> Iterator[int]:
    """An imported semaphore of another API; the driver owns the descriptor."""
    made = driver.import_external_semaphore(fd, kind)
    try:
        yield made
    finally:
        driver.destroy_external_semaphore(made)


@contextmanager
def streams(driver: Driver, count: int) -> Iterator[list[int]]:
    """Streams that do not synchronize with stream 0."""
    with ExitStack() as stack:
        made = [driver.stream_create() for _ in range(count)]
        for each in made:
            stack.callback(driver.stream_destroy, each)
        yield made


@contextmanager
def stream(driver: Driver) -> Iterator[int]:
    with streams(driver, 1) as made:
        yield made[0]


def ends(driver: Driver, stream: int) -> bool:
    """Return whether all work of a stream completes in time."""
    deadline = time.monotonic() + PATIENCE
    while not driver.stream_query(stream):
        if time.monotonic() > deadline:
            return False
    return True


def reaches(made: ExternalApiSemaphore, value: int) -> bool:
    """Return whether the other API's counter of a timeline reaches a value in time."""
    deadline = time.monotonic() + PATIENCE
    while made.counter < value:
        if time.monotonic() > deadline:
            return False
    return True


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
