"""Offers of a process to others: exports by name, their handles, and the provider of both."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from memtopo.plans.report import Checks

Kind = Literal["chunk", "buffer", "event", "memory", "semaphore"]
"""Kind of the offered objects; the last two are external memory and external semaphores."""
Via = Literal["fd", "fabric", "ipc", "opaque_fd", "timeline_fd"]
DESCRIPTORS: Collection[Via] = ("fd", "opaque_fd", "timeline_fd")
"""Transports by file descriptor, which a packet carries beside its bytes; handles of the others are bytes within it."""

LONGEST_NAME = 262
"""Characters of an export's name; in a multi-process layout that is `PROCESS.123.EXPORT`."""

SECRET_BYTES = 64
"""Length of an IPC or fabric handle (fact 31)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One export: `count` equal objects of `size` bytes each, at a `location` (`gpu0`, `host:0`).

    The size of events and semaphores is 0. `gpu` is the UUID of the GPU in hexadecimal digits, since ordinals differ
    between processes (fact 38). `properties` are words: rdma, compressible; of external memory, dedicated.
    """

    name: str
    kind: Kind
    via: Via
    count: int
    size: int
    location: str
    gpu: str | None = None
    properties: tuple[str, ...] = ()

    @property
    def descriptors(self) -> bool:
        """True if the handles are file descriptors."""
        return self.via in DESCRIPTORS


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


@dataclass(frozen=True, slots=True)
class Handle:
    """One handle: a descriptor, which this object owns, or a secret; `offset` is that of a buffer in its block."""

    fd: int | None = None
    secret: Secret | None = None
    offset: int = 0

    def close(self) -> None:
        """Close the descriptor, if there is one; an open one pins the memory (fact 29). Call it once."""
        if self.fd is not None:
            os.close(self.fd)


class ExportProvider(Protocol):
    """The exports that a holder serves."""

    def offers(self) -> Sequence[Offer]:
        """Return the exports in the order of the spec; they do not change while they are served."""
        ...

    def handle(self, export: str, index: int) -> Handle:
        """Return a new handle of one object, whose descriptor the caller closes. Raises `MemtopoError`."""
        ...

    def check(self) -> Checks:
        """Check by queries that everything is as declared. Raises `MemtopoError`."""
        ...
