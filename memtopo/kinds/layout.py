"""A layout: the live handles and addresses of one plan, put there by its steps and taken away by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from memtopo.common.errors import InternalError
from memtopo.driver.protocol import Driver


class Reservation(NamedTuple):
    """A reserved range: its address and its size in bytes."""

    address: int
    size: int


class Descriptor(NamedTuple):
    """A file descriptor, and what it was of when it was opened: its number may be somebody else's by now."""

    fd: int
    file: tuple[int, int, int]


class Wait(NamedTuple):
    """What a stream waits for: the value of a semaphore, by its label, that somebody at a holder is to signal."""

    semaphore: str
    value: int
    holder: str


class HandleSource(Protocol):
    """Where imported handles come from. Every method raises `MemtopoError` where the other end is not as declared."""

    def attach(self, holder: str) -> int:
        """Connect to a holder outside of this spec; gives the number of its process."""

    def detach(self, holder: str) -> None:
        """Close the connection, and with it the lease on all that came over it."""

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        """One handle: a file descriptor, or the 64 bytes of a fabric or IPC handle; good until the next is taken.

        Descriptors are closed some at a time: after a close, the driver's next export takes a millisecond (fact 50).
        """

    def gone(self, holder: str) -> bool:
        """Whether a holder that this is attached to has ended the connection; nothing is waited for."""

    def settle(self) -> None:
        """Close the descriptors that were taken; connections stay."""


class NoHandleSource:
    """Of a layout that imports nothing."""

    def attach(self, holder: str) -> int:
        raise InternalError(f"nothing delivers from {holder}")

    def detach(self, holder: str) -> None:
        raise InternalError(f"nothing delivers from {holder}")

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        raise InternalError(f"nothing delivers {export}.{index} from {holder}")

    def gone(self, holder: str) -> bool:
        raise InternalError(f"nothing is attached to {holder}")

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
    managed: dict[str, Reservation] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)
    """The stream of each GPU that waits for somebody else, or that managed memory belongs to."""
    waiting: dict[int, Wait] = field(default_factory=dict)
    """What the stream of a GPU waits for, until it is seen to be done."""
    descriptors: dict[str, Descriptor] = field(default_factory=dict)
    """Descriptors of external objects that are not handed to the driver yet, by label."""
    external: dict[str, int] = field(default_factory=dict)
    """External memory by label. What is mapped of it is among the buffers: `frame`, and `frame.y`."""
    semaphores: dict[str, int] = field(default_factory=dict)
    attached: dict[str, int] = field(default_factory=dict)
    """Holders that this layout has a connection to, each with the number of its process."""
    handle_source: HandleSource = field(default_factory=NoHandleSource)
    timeout: float = 60.0
    """Seconds that anybody outside is waited for."""
    retained: dict[str, int] = field(default_factory=dict)
    """References that a check took, by the label of the chunk that it expected, until they are given back."""

    def address(self, label: str) -> int:
        """Where a range, a buffer or managed memory begins."""
        return self.place(label).address

    def place(self, label: str) -> Reservation:
        """Address and size of a range, a buffer or managed memory."""
        return self.ranges.get(label) or self.buffers.get(label) or self.managed[label]


@contextmanager
def current(driver: Driver, context: int) -> Iterator[None]:
    """Have a context current on this thread, and leave the thread as it was found."""
    driver.ctx_push_current(context)
    try:
        yield
    finally:
        driver.ctx_pop_current()
