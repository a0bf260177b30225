"""What memtopo has SMs do to bytes; beside `Driver`, since a simulator cannot run PTX.

All of it is launched in the current context, whose device must have access (fact 24: without it, every later call of
the process fails). `fill` and `store` are not waited for; `verify` and `load` wait for all work of the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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


STEP = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio: odd, so that no two words of one chunk are equal."""

_WORDS = 1 << 64
_LOW = _WORDS - 1


def base(seed: int, first: int) -> int:
    """The x of the word `first` bytes from a chunk's start; a multiple of 8."""
    return (seed + first // 8 * STEP) & _LOW


def word(seed: int, offset: int) -> int:
    """The word that holds the byte at an offset."""
    x = base(seed, offset)
    return x ^ (x >> 32)


def pattern(seed: int, offset: int, size: int) -> bytes:
    """`size` bytes from an offset on, which is a multiple of 8."""
    pairs = -(-size // 16)
    ones, steps, lanes, halves = _lanes(pairs)
    whole = 0
    for half in range(2):
        # Every second word, each in a lane of 128 bits, so that no sum runs into the next one.
        x = (steps + base(seed, offset + 8 * half) * ones) & lanes
        whole |= (x ^ ((x >> 32) & halves)) << (64 * half)
    return whole.to_bytes(16 * pairs, "little")[:size]


@lru_cache(maxsize=64)
def _lanes(count: int) -> tuple[int, int, int, int]:
    """For `count` lanes: ones, twice the step times their numbers, and masks of their low 64 and 32 bits."""
    ones = sum(1 << (128 * lane) for lane in range(count))
    steps = sum(((2 * lane * STEP) & _LOW) << (128 * lane) for lane in range(count))
    return ones, steps, ones * _LOW, ones * 0xFFFF_FFFF
