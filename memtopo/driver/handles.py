"""Handles of objects that one process shares with another: what can be offered, by which transports, and the handle."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Literal, NoReturn

from msgspec import Struct

OfferedKind = Literal["chunk", "buffer", "event", "allocation", "range", "memory", "semaphore", "shm", "multicast"]
"""Kinds of objects that one process can offer to another; memory and semaphores are external objects, and `shm` is
memory of the host in a file."""

Via = Literal["fd", "fabric", "ipc", "dmabuf", "opaque_fd", "timeline_fd", "memfd"]
"""Transports of handles. External objects use `opaque_fd` and `timeline_fd`; a semaphore via `opaque_fd` is binary."""

DESCRIPTORS: Collection[Via] = ("fd", "dmabuf", "opaque_fd", "timeline_fd", "memfd")
"""Transports by file descriptor, which a packet carries beside its bytes; handles of the others are bytes within it."""

SECRET_BYTES = 64
"""Length of an IPC or fabric handle (fact 31)."""


class Secret:
    """The bytes of an IPC or fabric handle. They give access to the memory, so they are never printed."""

    __slots__ = ("_bytes",)

    def __init__(self, value: bytes) -> None:
        if len(value) != SECRET_BYTES:
            raise ValueError(f"a handle of {len(value)} bytes; it must have {SECRET_BYTES}")
        self._bytes = bytes(value)

    def reveal(self) -> bytes:
        """Return the bytes, for the driver and for the wire only."""
        return self._bytes

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be serialized")


class Handle(Struct, frozen=True):
    """One handle: a descriptor, which this object owns, or a secret; `offset` is that of a buffer in its block.

    An allocation has both: the descriptor of its pool, and the bytes that name it in the pool (fact 82).
    """

    fd: int | None = None
    secret: Secret | None = None
    offset: int = 0

    @classmethod
    def of(cls, shared: int | bytes) -> Handle:
        """Return the handle that the driver exported: a descriptor, or the bytes of a fabric or IPC handle."""
        return cls(fd=shared) if isinstance(shared, int) else cls(secret=Secret(shared))

    @property
    def shared(self) -> int | bytes:
        """The descriptor or the bytes, as the driver imports them."""
        if self.fd is not None:
            return self.fd
        assert self.secret
        return self.secret.reveal()

    def close(self) -> None:
        """Close the descriptor, if there is one; an open one pins the memory (fact 29). Call it once."""
        if self.fd is not None:
            os.close(self.fd)


def close_handles(handles: Iterable[Handle]) -> None:
    """Close the descriptors of handles; errors are ignored."""
    for handle in handles:
        with suppress(OSError):
            handle.close()
