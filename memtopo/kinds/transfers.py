"""Copies between files and memory that a layout has mapped, by GPUs through page-locked buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock

from msgspec import Struct

from memtopo.common.errors import Stopped
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, RegisterFlags
from memtopo.kinds.layout import Layout, current
from memtopo.storage.direct import BUFFER, Transfer
from memtopo.storage.saved import Piece


class Span(Struct, frozen=True):
    """Bytes at an address, with the GPU that copies them."""

    address: int
    size: int
    device: int


class SpanMemory:
    """Memory of pieces at addresses of a layout, which GPUs copy, one copy at a time."""

    def __init__(self, driver: Driver, layout: Layout, spans: Mapping[str, Span]) -> None:
        self._driver, self._layout, self._spans, self._copying = driver, layout, spans, Lock()

    @property
    def pieces(self) -> Sequence[Piece]:
        """Names and sizes of the pieces."""
        return [Piece(name, span.size) for name, span in self._spans.items()]

    def read(self, piece: str, offset: int, size: int, address: int) -> None:
        """Copy bytes of a piece to an address of this process. Raises `DriverError`."""
        self._copy(self._spans[piece].device, address, self._spans[piece].address + offset, size)

    def write(self, piece: str, offset: int, size: int, address: int) -> None:
        """Copy bytes from an address of this process to a piece. Raises `DriverError`."""
        self._copy(self._spans[piece].device, self._spans[piece].address + offset, address, size)

    def _copy(self, device: int, target: int, source: int, size: int) -> None:
        with self._copying, current(self._driver, self._layout.contexts[device]):
            self._driver.memcpy_async(target, source, size)
            self._driver.ctx_synchronize()


@contextmanager
def transferring(driver: Driver, layout: Layout, *, stops: bool = False) -> Iterator[Transfer]:
    """Run threads that copy between files and memory, until the end of the code inside.

    The pages of their buffers are locked, where that is possible: else copies take longer. Their tasks are parts of the
    progress. With `stops`, a stop of the run raises `Stopped`.
    """

    def beat(done: int) -> None:
        if stops and layout.stop():
            raise Stopped
        layout.advance(done)

    with Transfer(beat, layout.extend).running() as transfer:
        if layout.contexts:
            with suppress(DriverError):
                for each in transfer.buffers:
                    _lock_pages(driver, next(iter(layout.contexts.values())), each.address, transfer.ending)
        yield transfer


def _lock_pages(driver: Driver, context: int, address: int, stack: ExitStack) -> None:
    def unlock() -> None:
        with current(driver, context):
            driver.mem_host_unregister(address)

    with current(driver, context):
        driver.mem_host_register(address, BUFFER, RegisterFlags.PORTABLE)
        stack.callback(unlock)
