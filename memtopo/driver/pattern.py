"""The bytes that kernels write to prove memory: 64-bit words that depend on a seed and on where they stand.

Word k is x ^ (x >> 32) with x = seed + k * STEP, modulo 2^64, little-endian. `memtopo/driver/cuda/kernels.ptx` says the
same in PTX.
"""

from __future__ import annotations

from functools import lru_cache

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
