"""Layout: live handles and addresses of one plan, added by its steps and removed when they are undone."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from memtopo.common.errors import InternalError
from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Grant
from memtopo.geometry.model import Geometry
from memtopo.kinds.elastic import ElasticContent, Pool


class Reservation(NamedTuple):
    """Address and size in bytes of a range, a buffer, managed or pinned memory."""

    address: int
    size: int


class Descriptor(NamedTuple):
    """File descriptor with the device, inode and device type of its file, since the number may have been reused."""

    fd: int
    file: tuple[int, int, int]


class SharedFile(NamedTuple):
    """File that another program shares, mapped at `address` with `size` bytes; its descriptor stays open."""

    fd: int
    address: int
    size: int


class Wait(NamedTuple):
    """Wait of a stream until the producer, `holder`, signals a value of a semaphore, which has a label."""

    semaphore: str
    value: int
    holder: str


class HandleSource(Protocol):
    """Source of imported handles. Every method raises `MemtopoError` if the other side is not as declared."""

    def attach(self, holder: str) -> int:
        """Connect to a holder outside of this spec and return its process id."""

    def detach(self, holder: str) -> None:
        """Close the connection, which ends the lease on everything received over it."""

    def take(self, holder: str, export: str, index: int) -> Handle:
        """Return one handle, which the source closes: it is valid until the next call.

        Descriptors are closed in batches: after a close, the driver's next export takes a millisecond (fact 50).
        """

    def gone(self, holder: str) -> bool:
        """Return true if an attached holder has closed the connection. Does not wait."""

    def expect(self, geometry: Geometry) -> None:
        """Import what another geometry declares from now on."""

    def settle(self) -> None:
        """Close the received descriptors; connections stay open."""


class NoHandleSource:
    """Handle source of a layout without imports."""

    def attach(self, holder: str) -> int:
        raise InternalError(f"no connection to {holder}")

    def detach(self, holder: str) -> None:
        raise InternalError(f"no connection to {holder}")

    def take(self, holder: str, export: str, index: int) -> Handle:
        raise InternalError(f"no connection to {holder}, requested {export}.{index}")

    def gone(self, holder: str) -> bool:
        raise InternalError(f"no connection to {holder}")

    def expect(self, geometry: Geometry) -> None:
        pass

    def settle(self) -> None:
        pass


@dataclass(slots=True, eq=False)
class Layout:
    """Everything that exists now, by the labels of the spec (`kv`, `page.3`); GPUs by ordinal."""

    contexts: dict[int, int] = field(default_factory=dict)
    ranges: dict[str, Reservation] = field(default_factory=dict)
    agreed: dict[str, int] = field(default_factory=dict)
    """Addresses that all instances of a counted process have agreed on, by the label of the range."""
    chunks: dict[str, int] = field(default_factory=dict)
    bound: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Bytes that are bound to a multicast object, by its label, GPU, and offset in it; its handle is in `chunks`."""
    mappings: dict[int, str] = field(default_factory=dict)
    """Addresses of mappings, each with the label of its chunk."""
    buffers: dict[str, Reservation] = field(default_factory=dict)
    memory_pools: dict[str, int] = field(default_factory=dict)
    """Stream-ordered pools, created and imported. Their allocations are in `buffers`."""
    pool_imports: dict[int, int] = field(default_factory=dict)
    """Number of imports of each imported pool: the driver returns the same handle for a pool each time (fact 82)."""
    pool_pointers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Imported pool of each imported allocation, and a digest of the bytes that name it there, by label."""
    pool_settings: set[tuple[str, int]] = field(default_factory=set)
    """Labels of pools with the attributes that are set."""
    pool_grants: dict[str, tuple[Grant, ...]] = field(default_factory=dict)
    """Access that is set for pools besides that of their own locations."""
    events: dict[str, int] = field(default_factory=dict)
    modules: dict[int, int] = field(default_factory=dict)
    """Loaded kernels by GPU."""
    copies: dict[str, int] = field(default_factory=dict)
    """Event of each copy to an offload area that is under way, by the label of its first chunk."""
    managed: dict[str, Reservation] = field(default_factory=dict)
    pinned: dict[str, Reservation] = field(default_factory=dict)
    """Page-locked memory of the host by label."""
    files: dict[str, SharedFile] = field(default_factory=dict)
    """Mapped files of other programs, by the name of the entry that registers them."""
    streams: dict[int, int] = field(default_factory=dict)
    """Stream of each GPU that waits for external semaphores, or that managed memory is attached to."""
    waiting: dict[int, Wait] = field(default_factory=dict)
    """Pending wait of each GPU's stream; removed when a query reports the stream as done."""
    descriptors: dict[str, Descriptor] = field(default_factory=dict)
    """Descriptors of external objects that the driver has not imported yet, by label."""
    external: dict[str, int] = field(default_factory=dict)
    """External memory by label. Its mapped buffers are in `buffers`: `frame`, and `frame.y`."""
    semaphores: dict[str, int] = field(default_factory=dict)
    awaited: dict[int, int] = field(default_factory=dict)
    """Stream of a GPU for whose work a change waits, in place of all work of the GPU."""
    attached: dict[str, int] = field(default_factory=dict)
    """Process id of each holder that this layout has a connection to."""
    handle_source: HandleSource = field(default_factory=NoHandleSource)
    ending: bool = False
    """True from the start of the teardown, which brings nothing back if an undo fails."""
    timeout: float = 60.0
    """Seconds to wait for processes outside of the spec."""
    pools: dict[str, Pool] = field(default_factory=dict)
    """Elastic chunks by the name of their entry; their handles are in `chunks`."""
    elastic: dict[str, ElasticContent] = field(default_factory=dict)
    """What is mapped in elastic ranges, by label; `mappings` has the fixed mappings only."""
    retained: dict[str, int] = field(default_factory=dict)
    """References that a check has retained and not yet released, by the label of the expected chunk."""

    def address(self, label: str) -> int:
        """Address of a range, a buffer, managed or pinned memory."""
        return self.reservation(label).address

    def reservation(self, label: str) -> Reservation:
        """Address and size of a range, a buffer, managed or pinned memory."""
        return self.ranges.get(label) or self.addressed[label]

    @property
    def addressed(self) -> Mapping[str, Reservation]:
        """Everything that has an address of its own: ranges, buffers, managed and pinned memory, by label."""
        return ChainMap(self.ranges, self.buffers, self.managed, self.pinned)


class LateError(DriverError):
    """Error after the effect of a step is complete: what it was to do is done, what it was to undo is undone."""

    def __init__(self, error: DriverError) -> None:
        super().__init__(error.call, error.name, error.reason)


@contextmanager
def current(driver: Driver, context: int) -> Iterator[None]:
    """Push a context on this thread, and pop it at the end. Raises `LateError` if only that fails."""
    driver.ctx_push_current(context)
    try:
        yield
    except BaseException:
        with suppress(DriverError):  # the first error is the cause
            driver.ctx_pop_current()
        raise
    try:
        driver.ctx_pop_current()
    except DriverError as error:
        raise LateError(error) from error
