"""What a process offers to others: exports by name, their handles, and who makes them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from memtopo.plans.report import Checks

Kind = Literal["chunk", "buffer", "event", "memory", "semaphore"]
"""What is offered; the last two are what another API made: external memory, and semaphores."""
Via = Literal["fd", "fabric", "ipc", "opaque_fd", "timeline_fd"]
DESCRIPTORS: Collection[Via] = ("fd", "opaque_fd", "timeline_fd")
"""The ways that are file descriptors, which travel beside a packet; the others are bytes within it."""

LONGEST_NAME = 262
"""Characters that an export's name may have: one of a process among several is `PROCESS.123.EXPORT`."""

SECRET_BYTES = 64
"""What an IPC and a fabric handle are long (fact 31)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One export: `count` like things of `size` bytes each, on a `location` (`gpu0`, `host:0`).

    The size of events and semaphores is 0.
    `gpu` is the UUID of the GPU, as hex text, since ordinals differ from process to process (fact 38). `properties` are
    words: rdma, compressible; of external memory, dedicated.
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
        """Whether its handles are file descriptors."""
        return self.via in DESCRIPTORS


class Secret:
    """The bytes of an IPC or fabric handle. Who has them can open the memory, so they are never shown."""

    __slots__ = ("_bytes",)

    def __init__(self, value: bytes) -> None:
        if len(value) != SECRET_BYTES:
            raise ValueError(f"a handle of {len(value)} bytes; it has {SECRET_BYTES}")
        self._bytes = bytes(value)

    def reveal(self) -> bytes:
        """The bytes, for the driver and for the wire alone."""
        return self._bytes

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


@dataclass(frozen=True, slots=True)
class Handle:
    """One handle: a descriptor that belongs to whoever has this, or a secret; and where in its block it begins."""

    fd: int | None = None
    secret: Secret | None = None
    offset: int = 0

    def close(self) -> None:
        """Close the descriptor, if there is one; an open one pins the memory (fact 29). Once, as with every fd."""
        if self.fd is not None:
            os.close(self.fd)


class ExportProvider(Protocol):
    """What a holder serves from. A live layout becomes one by these three methods."""

    def offers(self) -> Sequence[Offer]:
        """The exports, in the spec's order; the same for as long as the layout stands."""
        ...

    def handle(self, export: str, index: int) -> Handle:
        """A handle of one thing; a descriptor is a new one each time, and the caller closes it.

        Raises `MemtopoError`.
        """
        ...

    def check(self) -> Checks:
        """Look whether everything is as declared, by queries alone. Raises `MemtopoError`."""
        ...
