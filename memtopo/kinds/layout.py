"""Layout: live handles and addresses of one plan, added by its steps and removed when they are undone."""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from memtopo.common.errors import InternalError
from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from memtopo.geometry.model import Geometry

K = TypeVar("K")
V = TypeVar("V")


class Reservation(NamedTuple):
    """Address and size in bytes of a range, a buffer, managed or pinned memory."""

    address: int
    size: int


class LentBlock(NamedTuple):
    """Elastic chunk that a holder lends: its number in the holder's pool, the epoch of its bytes, and a handle."""

    number: int
    epoch: int
    handle: Handle


class HandleSource:
    """Source of imported handles; this base has none, for a layout without imports.

    Every method raises `MemtopoError` if the other side is not as declared.
    """

    def attach(self, holder: str) -> int:
        """Connect to a holder outside of this spec and return its process id."""
        raise InternalError(f"no connection to {holder}")

    def detach(self, holder: str) -> None:
        """Close the connection, which ends the lease on everything received over it."""

    def await_handle(self, holder: str, export: str, index: int) -> None:
        """Wait until a process of this layout has sent a handle, of which `take` is next; its requests are served."""

    def take(self, holder: str, export: str, index: int) -> Handle:
        """Return one handle, which the source closes: it is valid until the next call.

        Descriptors are closed in batches: after a close, the driver's next export takes a millisecond (fact 50).
        """
        raise InternalError(f"no connection to {holder}, requested {export}.{index}")

    def lend(
        self, holder: str, export: str, count: int, *, key: str | None = None, first: int = 0, epoch: int | None = None
    ) -> tuple[Sequence[LentBlock], int]:
        """Return some of `count` chunks that the holder lends to this process now, with handles as those of `take`.

        With a key, they are ones that were sealed under it, from number `first` on, and of that epoch if it is given;
        their number in all is returned, too.
        """
        raise InternalError(f"no connection to {holder}, requested chunks of {export}")

    def give_back(self, holder: str, export: str, blocks: Mapping[int, int]) -> None:
        """Give lent chunks back, by number with their epoch, of which nothing is left in this process."""
        raise InternalError(f"no connection to {holder}, which lends {export}")

    def seal(self, holder: str, export: str, blocks: Mapping[int, int], key: str | None) -> None:
        """Have the holder keep the bytes of lent chunks under a key; with None, no longer."""
        raise InternalError(f"no connection to {holder}, which lends {export}")

    def gone(self, holder: str) -> bool:
        """Return true if an attached holder has closed the connection. Does not wait."""
        return False

    def expect(self, geometry: Geometry) -> None:
        """Import what another geometry declares from now on."""

    def settle(self) -> None:
        """Close the received descriptors; connections stay open."""


class LayoutTable(Generic[K, V]):
    """Kind of live objects, declared beside the steps that create them; `Layout.of` returns these by their label."""


class Layout(Struct, eq=False):
    """Everything that exists now, by the labels of the spec (`kv`, `page.3`); GPUs by ordinal.

    What several kinds need is in fields, all else in the tables of the kinds.
    """

    name: str = ""
    """Name of the layout, with the process in one of several: `kv/rank.3`."""
    contexts: dict[int, int] = {}
    ranges: dict[str, Reservation] = {}
    buffers: dict[str, Reservation] = {}
    """Buffers, allocations of pools, and mapped buffers of external memory: `frame`, and `frame.y`."""
    memory: dict[str, Reservation] = {}
    """Managed memory, and page-locked memory of the host."""
    chunks: dict[str, int] = {}
    mappings: dict[int, str] = {}
    """Addresses of mappings, each with the label of its chunk."""
    handle_source: HandleSource = field(default_factory=HandleSource)
    ending: bool = False
    """True from the start of the teardown, which brings nothing back if an undo fails."""
    timeout: float = 60.0
    """Seconds to wait for processes outside of the spec."""
    stop: Callable[[], int] = lambda: False
    """Return true if the run was asked to stop; a step that takes long calls it, and raises `Stopped`."""
    extend: Callable[[int], None] = lambda _parts: None
    """Add the parts of a step that takes long to those of the progress."""
    advance: Callable[[int], None] = lambda _parts: None
    """Count parts of a step as done."""
    _tables: dict[LayoutTable[Any, Any], dict[Any, Any]] = field(default_factory=lambda: defaultdict(dict))

    def of(self, table: LayoutTable[K, V]) -> dict[K, V]:
        """Live objects of a kind by label."""
        return self._tables[table]

    def address(self, label: str) -> int:
        """Address of a range, a buffer, managed or pinned memory."""
        return self.reservation(label).address

    def reservation(self, label: str) -> Reservation:
        """Address and size of a range, a buffer, managed or pinned memory."""
        return self.ranges.get(label) or self.addressed[label]

    @property
    def addressed(self) -> Mapping[str, Reservation]:
        """Everything that has an address of its own, by label."""
        return ChainMap(self.ranges, self.buffers, self.memory)


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
