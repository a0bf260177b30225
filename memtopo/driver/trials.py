"""What only trials ask of a driver: stores by a kernel, also while the CPU writes the same memory, and pools.

Apart from the driver proper, since no layout is built with it. The same rules hold: ints, bytes, `DriverError`.
"""

from __future__ import annotations

from typing import Protocol, Self

from memtopo.driver.types import HandleType, Location

WORD = 8
"""Bytes that a kernel stores."""


class Extras(Protocol):
    """Calls for trials, beside a `Driver` of the same process; a context must be current."""

    def store(self, address: int, value: int) -> None:
        """Have a kernel store a word of 8 bytes, and wait for it.

        A store that is refused ends all use of the GPUs in this process (fact 24).
        """

    def meet(self, address: int, value: int) -> bool:
        """Have a kernel wait for what the CPU writes into managed memory meanwhile; it stores `value` in answer.

        Uses two words at `address`. The kernel gives up after about a second. Where the CPU may not touch managed
        memory while a kernel runs, the process dies of SIGSEGV.
        """

    def mem_pool_create(self, location: Location, handles: HandleType) -> int:
        """Create a pool whose memory can be shared so."""

    def mem_pool_export_to_shareable_handle(self, pool: int, kind: HandleType) -> int | bytes:
        """Share a pool, as a new file descriptor or as 64 bytes."""

    def mem_pool_import_from_shareable_handle(self, shared: int | bytes, kind: HandleType) -> int:
        """Another process's pool as one here."""

    def mem_pool_destroy(self, pool: int) -> None:
        """Give up a pool, created or imported here."""


class ForeignMemory(Protocol):
    """Memory that another API allocated on its GPU; `whole` bytes as an object."""

    whole: int

    def fd(self) -> int:
        """A new descriptor of it, which is the caller's."""

    def read(self, offset: int, count: int) -> bytes:
        """Its bytes, as the other API reads them."""

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes, and wait for that."""

    def free(self) -> None:
        """Give it up there, once or more often; what was handed on of it stays."""


class ForeignSemaphore(Protocol):
    """A semaphore that another API made: a timeline, whose value is its `counter`, or a binary one."""

    @property
    def counter(self) -> int: ...

    def fd(self) -> int:
        """A new descriptor of it, which is the caller's."""

    def signal(self, value: int = 1) -> None:
        """Signal it from there."""

    def wait(self, value: int, seconds: float) -> bool:
        """Wait for it there; false where a timeline took too long."""

    def free(self) -> None:
        """Give it up there, once or more often."""


class Foreign(Protocol):
    """Another API on one GPU, for as long as a `with` lasts; then all that it made there is given up."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def allocate(self, size: int, *, dedicated: bool = False) -> ForeignMemory:
        """Memory that can be exported."""

    def adopt(self, fd: int, size: int) -> ForeignMemory:
        """Memory that a driver exported, by a descriptor, which is the other API's then (fact 59)."""

    def timeline(self, value: int = 0) -> ForeignSemaphore:
        """A timeline semaphore that can be exported."""

    def binary(self) -> ForeignSemaphore:
        """A binary semaphore that can be exported."""
