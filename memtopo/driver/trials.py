"""Calls that only trials use: stores by a kernel, and external APIs.

They are apart from `Driver`, since no layout is built with them. The same conventions apply: ints, bytes,
`DriverError`.
"""

from __future__ import annotations

from typing import Protocol, Self

WORD = 8
"""Bytes of a kernel's store."""


class TrialCalls(Protocol):
    """Driver calls for trials; a context must be current."""

    def store(self, address: int, value: int) -> None:
        """Store a word of 8 bytes by a kernel, and wait for it.

        After an illegal access every later call of this process fails (fact 24).
        """

    def meet(self, address: int, value: int) -> bool:
        """Let a kernel wait for a word that the CPU writes to managed memory, and store `value` in response.

        Uses two words at `address`. The kernel gives up after about a second. If the CPU may not access managed memory
        while a kernel runs, the process ends with SIGSEGV.
        """


class ExternalApiMemory(Protocol):
    """Memory that an external API allocated on its GPU; `whole` is the object's size in bytes."""

    whole: int

    def fd(self) -> int:
        """Return a new descriptor, which the caller closes."""

    def read(self, offset: int, count: int) -> bytes:
        """Read bytes by the external API."""

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes by the external API, and wait for it."""

    def free(self) -> None:
        """Free the memory in the external API; repeated calls are ignored. Exported descriptors stay valid."""


class ExternalApiSemaphore(Protocol):
    """Semaphore of an external API: a timeline, whose value is its `counter`, or a binary one."""

    @property
    def counter(self) -> int: ...

    def fd(self) -> int:
        """Return a new descriptor, which the caller closes."""

    def signal(self, value: int = 1) -> None:
        """Signal the semaphore by the external API."""

    def wait(self, value: int, seconds: float) -> bool:
        """Wait for the semaphore by the external API; false if a timeline took too long."""

    def free(self) -> None:
        """Destroy the semaphore in the external API; repeated calls are ignored."""


class ExternalApi(Protocol):
    """An external API on one GPU, as a context manager that frees its objects at the end."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def allocate(self, size: int, *, dedicated: bool = False) -> ExternalApiMemory:
        """Allocate memory that can be exported."""

    def adopt(self, fd: int, size: int) -> ExternalApiMemory:
        """Import memory that a driver exported; ownership of the descriptor passes to the external API (fact 59)."""

    def timeline(self, value: int = 0) -> ExternalApiSemaphore:
        """Create a timeline semaphore that can be exported."""

    def binary(self) -> ExternalApiSemaphore:
        """Create a binary semaphore that can be exported."""
