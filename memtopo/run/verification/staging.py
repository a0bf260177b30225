"""Copies of many small spans of GPU memory by batches of the driver, through page-locked host memory (fact 89)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate

from memtopo.common.errors import InternalError
from memtopo.common.records import record
from memtopo.common.signals import deferred
from memtopo.driver.batches import copy_each
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HostFlags
from memtopo.kinds.layout import current

LEAST = 256
"""Spans for which the memory is worth its allocation."""


@record
class Staging:
    """Page-locked memory of `size` bytes, with a stream of a GPU's context, which is current during the copies."""

    driver: Driver
    address: int
    size: int
    stream: int

    def write(self, spans: Sequence[tuple[int, bytes]]) -> None:
        """Copy bytes to addresses, and wait. Raises `DriverError`; those before the refused copy may have arrived."""
        self._require(sum(len(data) for _, data in spans))
        self.driver.host_write(self.address, b"".join([data for _, data in spans]))
        places = accumulate((len(data) for _, data in spans), initial=self.address)
        self._copy([(address, place, len(data)) for (address, data), place in zip(spans, places, strict=False)])

    def read(self, spans: Sequence[tuple[int, int]]) -> bytes:
        """Copy `count` bytes from each address, and wait; return them one after another. Raises `DriverError`."""
        places = list(accumulate((count for _, count in spans), initial=0))
        self._require(places[-1])
        copies = zip(spans, places, strict=False)
        self._copy([(self.address + place, address, count) for (address, count), place in copies])
        return self.driver.host_read(self.address, places[-1])

    def _require(self, size: int) -> None:
        if size > self.size:
            raise InternalError(f"{size:,} bytes for {self.size:,} of staging memory")

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        error = copy_each(self.driver, copies, self.stream)
        self.driver.ctx_synchronize()
        if error:
            raise error


@contextmanager
def staging(driver: Driver, context: int, size: int) -> Iterator[Staging | None]:
    """Staging memory of `size` bytes in a GPU's context; None if there is no such memory, as where all is locked."""
    address = stream = 0
    try:
        with deferred(), current(driver, context), suppress(DriverError):
            address = driver.mem_host_alloc(size, HostFlags.PORTABLE)
            stream = driver.stream_create()
        yield Staging(driver, address, size, stream) if stream else None
    finally:
        with deferred(), current(driver, context):
            if stream:
                driver.stream_destroy(stream)
            if address:
                driver.mem_free_host(address)
