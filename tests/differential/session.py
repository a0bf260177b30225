"""State of one sequence on a driver: values of the symbols, and what is open, so that it can be given back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError
from tests.differential.notation import size_text

JUNK = 2 << 20
"""Address in no reservation: drivers reserve higher ones."""


class Session:
    """Values of symbols on one driver; `contexts` are retained primary contexts by GPU."""

    def __init__(self, driver: Driver, contexts: Sequence[int]) -> None:
        self.driver, self.contexts = driver, contexts
        self.addresses = {"null": 0, "junk": JUNK}
        self.handles: dict[str, int] = {}
        self.fds: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.references: dict[int, int] = {}
        self.reservations: dict[int, tuple[int, str]] = {}
        self.allocations: dict[int, tuple[int, str]] = {}
        self.mappings: dict[int, int] = {}
        self.pushed = 0

    def opened(self, symbol: str, handle: int) -> None:
        """Keep a new handle under a symbol."""
        self.handles[symbol] = handle
        self.names[handle] = symbol
        self.references[handle] = 1

    def unmapped(self, address: int, size: int) -> None:
        """Forget the mappings in a range."""
        for start in [each for each in self.mappings if address <= each < address + size]:
            del self.mappings[start]

    def name_of(self, address: int) -> str:
        """Address as a symbol and an offset; `?` in nothing that this sequence has."""
        for areas in (self.reservations, self.allocations):
            for start, (size, symbol) in areas.items():
                if start <= address < start + size:
                    return f"{symbol}+{size_text(address - start)}" if address > start else symbol
        return "?"

    def close(self) -> bool:
        """Give back everything; returns false if the driver refused something, and the process should end."""
        driver, clean = self.driver, True

        def attempt(call: Callable[..., object], *arguments: int) -> None:
            nonlocal clean
            try:
                call(*arguments)
            except DriverError:
                clean = False

        if self.pushed:
            attempt(driver.ctx_synchronize)
        for _ in range(self.pushed):
            attempt(driver.ctx_pop_current)
        for address, size in self.mappings.items():
            attempt(driver.mem_unmap, address, size)
        for handle, count in self.references.items():
            for _ in range(count):
                attempt(driver.mem_release, handle)
        for address, (size, _) in self.reservations.items():
            attempt(driver.mem_address_free, address, size)
        for address in self.allocations:
            attempt(driver.mem_free, address)
        self.close_files()
        return clean

    def close_files(self) -> None:
        """Close the descriptors of exported chunks."""
        while self.fds:
            os.close(self.fds.popitem()[1])
