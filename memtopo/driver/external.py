"""What memtopo asks of a driver about memory and semaphores that another API made, and about streams.

A part of `Driver`, with its rules. Mapped buffers are given back by `mem_free`.
"""

from __future__ import annotations

from typing import Protocol

from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType


class ExternalResources(Protocol):
    """Objects of Vulkan and others, by their descriptors, and the streams that wait for them."""

    def stream_create(self, flags: int = 1) -> int:
        """Create a stream of the current context; with 1 it does not wait for stream 0."""

    def stream_destroy(self, stream: int) -> None:
        """Give up a stream; what it still waits for goes on holding its context (fact 58)."""

    def stream_query(self, stream: int) -> bool:
        """Whether all work of a stream is done."""

    def import_external_memory(self, fd: int, kind: MemoryHandleType, size: int, *, dedicated: bool = False) -> int:
        """An object of `size` bytes that another API made; needs the current context of its GPU (facts 53, 55).

        The descriptor is the driver's from then on. Where it is refused, it may be closed and may be open (fact 54).
        """

    def external_memory_get_mapped_buffer(self, memory: int, offset: int, size: int) -> int:
        """The address of a part of an object (fact 53)."""

    def destroy_external_memory(self, memory: int) -> None:
        """Give up an object, once. A second time ends the process (fact 57)."""

    def import_external_semaphore(self, fd: int, kind: SemaphoreHandleType) -> int:
        """A semaphore that another API made; needs a current context. The descriptor is the driver's then (fact 54)."""

    def signal_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Have a stream signal, once its work is done; the value counts for timelines alone (fact 56)."""

    def wait_external_semaphore(self, semaphore: int, value: int, stream: int) -> None:
        """Have a stream wait; nothing ends that but the signal (facts 56, 58)."""

    def destroy_external_semaphore(self, semaphore: int) -> None:
        """Give up a semaphore, once (fact 57). It waits for all that was not signalled yet, for ever (fact 58)."""
