"""Copies of many small spans of GPU memory by batches of the driver, through page-locked host memory (fact 89)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate

from memtopo.common.errors import InternalError
from memtopo.common.signals import deferred
from memtopo.driver.batches import copy_each
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HostFlags
from memtopo.kinds.layout import current

LEAST = 256
"""Spans for which the memory is worth its allocation."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Page-locked memory of `size` bytes, with a stream of a GPU's context, which is current during the copies."""

    driver: Driver
    address: int
    size: int
    stream: int

    def write(self, addresses: Sequence[int], counts: Sequence[int], data: bytes) -> None:
        """Copy `data` to addresses, so many bytes to each, and wait.

        Raises `DriverError`; those before the refused copy may have arrived.
        """
        self._require(len(data))
        self.driver.host_write(self.address, data)
        self._copy(list(zip(addresses, accumulate(counts, initial=self.address), counts, strict=False)))

    def read(self, addresses: Sequence[int], counts: Sequence[int]) -> bytes:
        """Copy so many bytes from each address, and wait; return them one after another. Raises `DriverError`."""
        size = sum(counts)
        self._require(size)
        self._copy(list(zip(accumulate(counts, initial=self.address), addresses, counts, strict=False)))
        return self.driver.host_read(self.address, size)

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
