"""What only trials ask of a driver: stores by a kernel, the CPU's own reads and writes, managed memory, and pools.

Apart from the driver proper, since no layout is built with it. The same rules hold: ints, bytes, `DriverError`.
"""

from __future__ import annotations

from typing import Protocol

from memtopo.driver.types import HandleType, Location

WORD = 8
"""Bytes that a kernel stores."""


class Extras(Protocol):
    """Calls for trials, beside a `Driver` of the same process; a context must be current but for those of the CPU."""

    def store(self, address: int, value: int) -> None:
        """Have a kernel store a word of 8 bytes, and wait for it.

        A store that is refused ends all use of the GPUs in this process (fact 24).
        """

    def meet(self, address: int, value: int) -> bool:
        """Have a kernel wait for what the CPU writes into managed memory meanwhile; it stores `value` in answer.

        Uses two words at `address`. The kernel gives up after about a second. Where the CPU may not touch managed
        memory while a kernel runs, the process dies of SIGSEGV.
        """

    def cpu_write(self, address: int, data: bytes) -> None:
        """The CPU's own store; it dies of SIGSEGV where the CPU may not write."""

    def cpu_read(self, address: int, count: int) -> bytes:
        """The CPU's own load; it dies of SIGSEGV where the CPU may not read."""

    def mem_alloc_managed(self, size: int) -> int:
        """Allocate managed memory that every GPU may use (fact 39); `mem_free` gives it back."""

    def mem_pool_create(self, location: Location, handles: HandleType) -> int:
        """Create a pool whose memory can be shared so."""

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType) -> int | bytes:
        """Share a pool, as a new file descriptor or as 64 bytes."""

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        """Another process's pool as one here."""

    def mem_pool_destroy(self, pool: int) -> None:
        """Give up a pool, created or imported here."""
