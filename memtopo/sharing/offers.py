"""Offers of a process to others: exports by name, and the provider of their handles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import DESCRIPTORS, Handle, OfferedKind, Via
from memtopo.plans.report import Checks

LONGEST_NAME = 262
"""Characters of an export's name; in a multi-process layout that is `PROCESS.123.EXPORT`."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One export: `count` equal objects of `size` bytes each, at a `location` (`gpu0`, `host:0`).

    The size of events and semaphores is 0. `gpu` is the UUID of the GPU in hexadecimal digits, since ordinals differ
    between processes (fact 38). `properties` are words: rdma, compressible; of external memory, dedicated. `declared`
    is the size before it was rounded up to whole blocks, if it is known.
    """

    name: str
    kind: OfferedKind
    via: Via
    count: int
    size: int
    location: str
    gpu: str | None = None
    properties: tuple[str, ...] = ()
    declared: int | None = None

    @property
    def descriptors(self) -> bool:
        """True if the handles are file descriptors."""
        return self.via in DESCRIPTORS


class SwitchFailed(MemtopoError):
    """Failed switch of a layout; `broken` if it can only be taken down, else it is in the state before."""

    exit_code = 4

    def __init__(self, message: str, *, broken: bool) -> None:
        super().__init__(message)
        self.broken = broken


class StateSwitch(Protocol):
    """The states of a held layout."""

    @property
    def state(self) -> str:
        """Name of the state that the layout is in."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Names of all states."""
        ...

    def without(self, state: str) -> frozenset[str]:
        """Return the names of the exports that have no memory in a state."""
        ...

    def switch(self, state: str) -> Checks:
        """Bring the layout to a state, and return the results of its check. Raises `SwitchFailed`."""
        ...


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
