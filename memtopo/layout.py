"""A layout: the live handles and addresses of one plan, put there by its steps and taken away by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from memtopo.driver.protocol import Driver
from memtopo.errors import InternalError


class Reservation(NamedTuple):
    """A reserved range: its address and its size in bytes."""

    address: int
    size: int


class Deliveries(Protocol):
    """Where imported handles come from. Every method raises `MemtopoError` where the other end is not as declared."""

    def attach(self, holder: str) -> None:
        """Connect to a holder outside of this spec."""

    def detach(self, holder: str) -> None:
        """Close the connection, and with it the lease on all that came over it."""

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        """One handle: a file descriptor, or the 64 bytes of a fabric or IPC handle; good until the next is taken.

        Descriptors are closed some at a time: after a close, the driver's next export takes a millisecond (fact 50).
        """

    def settle(self) -> None:
        """Close the descriptors that were taken; connections stay."""


class NoDeliveries:
    """Of a layout that imports nothing."""

    def attach(self, holder: str) -> None:
        raise InternalError(f"nothing delivers from {holder}")

    def detach(self, holder: str) -> None:
        raise InternalError(f"nothing delivers from {holder}")

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        raise InternalError(f"nothing delivers {export}.{index} from {holder}")

    def settle(self) -> None:
        pass


@dataclass(slots=True)
class Layout:
    """What exists right now, by the labels of the spec (`kv`, `page.3`); GPUs by ordinal."""

    contexts: dict[int, int] = field(default_factory=dict)
    ranges: dict[str, Reservation] = field(default_factory=dict)
    chunks: dict[str, int] = field(default_factory=dict)
    mappings: dict[int, str] = field(default_factory=dict)
    """Addresses of mappings, each with the label of its chunk."""
    buffers: dict[str, Reservation] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    modules: dict[int, int] = field(default_factory=dict)
    """Kernels that are loaded, by GPU."""
    attached: set[str] = field(default_factory=set)
    """Holders that this layout has a connection to."""
    deliveries: Deliveries = field(default_factory=NoDeliveries)
    retained: dict[str, int] = field(default_factory=dict)
    """References that a check took, by the label of the chunk that it expected, until they are given back."""

    def address(self, label: str) -> int:
        """Where a range or a buffer begins."""
        return (self.ranges.get(label) or self.buffers[label]).address


@contextmanager
def current(driver: Driver, context: int) -> Iterator[None]:
    """Have a context current on this thread, and leave the thread as it was found."""
    driver.ctx_push_current(context)
    try:
        yield
    finally:
        driver.ctx_pop_current()
