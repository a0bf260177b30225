"""What memtopo has SMs do to bytes; beside `Driver`, since a simulator cannot run PTX.

All of it is launched in the current context, whose device must have access (fact 24: without it, every later call of
the process fails). `fill` and `store` are not waited for; `verify` and `load` wait for all work of the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from memtopo.driver.protocol import Driver

ALIGNED = 16
"""What addresses that are filled or verified are multiples of; a load or a store wants 8."""

MOST_AREAS = 1 << 16
"""Areas of one verification."""


class Area(NamedTuple):
    """`size` bytes at an address, which hold what stands from `first` on in a chunk of this seed (`pattern`).

    `first` is in bytes, a multiple of 8.
    """

    address: int
    size: int
    seed: int
    first: int = 0


class Verified(NamedTuple):
    """How many words (of the last 15 bytes of an area, how many bytes) differ, and one of the lowest that do.

    `area` is its number and `offset` its place in it; `wanted` and `seen` are the word there, or the byte.
    """

    mismatches: int
    area: int = 0
    offset: int = 0
    wanted: int = 0
    seen: int = 0


class Kernels(Protocol):
    """Stores and loads by kernels."""

    def module_load_data(self) -> int:
        """Load the kernels into the current context, once; they want unloading there. Takes the others' place."""

    def module_unload(self, module: int) -> None:
        """Unload them, in their context."""

    def fill(self, areas: Sequence[Area]) -> None:
        """Write the pattern to areas, whole ones each by 16-byte stores."""

    def verify(self, areas: Sequence[Area]) -> Verified:
        """Compare areas with the pattern."""

    def store(self, address: int, value: int) -> None:
        """Store one 64-bit word."""

    def load(self, address: int) -> int:
        """Load one 64-bit word."""


class KernelDriver(Driver, Kernels, Protocol):
    """A driver that can run them."""
