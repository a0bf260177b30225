"""What memtopo asks of a driver about managed memory, and about what the CPU itself reads and writes.

A part of `Driver`, with its rules. Managed memory is given back by `mem_free`.
"""

from __future__ import annotations

from typing import Protocol

from memtopo.driver.types import Advice, Location, MemAttach, RangeAttribute


class ManagedMemory(Protocol):
    """Memory that migrates, and the CPU's side of memory that it may touch."""

    def mem_alloc_managed(self, size: int, flags: MemAttach) -> int:
        """Allocate managed memory; needs a current context. `SINGLE` is refused here (facts 39, 60)."""

    def mem_advise(self, address: int, size: int, advice: Advice, location: Location) -> None:
        """Advise how a managed range is going to be used (fact 60)."""

    def mem_prefetch_async(self, address: int, size: int, location: Location, stream: int = 0) -> None:
        """Have a managed range migrate to a GPU or the host (fact 60)."""

    def mem_range_get_attribute(self, address: int, size: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """What a managed range was advised: 0 or 1, or GPUs by ordinal with `HOST` for the host; without any, empty."""

    def stream_attach_mem_async(self, stream: int, address: int, flags: MemAttach) -> None:
        """Say who uses all of an allocation of managed memory: with `SINGLE`, a stream other than 0 alone (fact 60)."""

    def pointer_is_managed(self, address: int) -> bool:
        """Whether an address is in managed memory."""

    def host_write(self, address: int, data: bytes) -> None:
        """The CPU's own store; it dies of SIGSEGV where the CPU may not write (facts 21, 39, 40)."""

    def host_read(self, address: int, count: int) -> bytes:
        """The CPU's own load; it dies of SIGSEGV where the CPU may not read (facts 21, 39, 40)."""
