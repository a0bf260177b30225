"""Kernels that write and verify memory, and the pattern that they write.

Kernels are apart from `Driver`, since a simulator cannot run PTX. They are launched in the current context, whose
device must have access (fact 24: an illegal access fails every later call of the process). `fill` and `store` return
before they are done; `verify`, `fingerprint` and `load` wait for all work of the context.

The pattern consists of 64-bit words that depend on a seed and on their offset: word k is x ^ (x >> 32) with
x = seed + k * STEP, modulo 2^64, little-endian. `memtopo/drivers/cuda/kernels.ptx` has the same formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

from memtopo.driver.protocol import Driver

ALIGNED = 16
"""Alignment of areas that are filled or verified; a load or store needs 8."""

MOST_AREAS = 1 << 16
"""Limit of the areas of one verification, and of the parts of one call for fingerprints."""


class Area(NamedTuple):
    """`size` bytes at an address, with the pattern of a chunk with this seed from offset `first` on.

    `first` is in bytes, a multiple of 8.
    """

    address: int
    size: int
    seed: int
    first: int = 0


class Verified(NamedTuple):
    """Number of words that differ (in the last 15 bytes of an area: bytes), and one of the lowest of them.

    `area` is its index and `offset` its offset in it; `expected` and `actual` are values of the word or byte.
    """

    mismatches: int
    area: int = 0
    offset: int = 0
    expected: int = 0
    actual: int = 0


class Kernels(Protocol):
    """Stores and loads by kernels."""

    def module_load_data(self) -> int:
        """Load the kernels into the current context; returns the module, which replaces an earlier one."""

    def module_unload(self, module: int) -> None:
        """Unload the kernels, in their context."""

    def fill(self, areas: Sequence[Area]) -> None:
        """Write the pattern to areas, by 16-byte stores."""

    def verify(self, areas: Sequence[Area]) -> Verified:
        """Compare areas with the pattern."""

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Fingerprint of 64 bits of each part: its address, a multiple of 16, and its size in bytes.

        A change of one word, or of one of the last 15 bytes, always changes it; others with a chance of 1 - 2^-64.
        """

    def store(self, address: int, value: int) -> None:
        """Store one 64-bit word."""

    def load(self, address: int) -> int:
        """Load one 64-bit word."""


class KernelDriver(Driver, Kernels, Protocol):
    """A driver that can run kernels."""


STEP = 0x9E37_79B9_7F4A_7C15
"""2^64 divided by the golden ratio: odd, so that no two words of one chunk are equal."""

_WORDS = 1 << 64
_LOW = _WORDS - 1


def base(seed: int, first: int) -> int:
    """Value x of the word at offset `first` of a chunk, a multiple of 8."""
    return (seed + first // 8 * STEP) & _LOW


def word(seed: int, offset: int) -> int:
    """Word that contains the byte at an offset."""
    x = base(seed, offset)
    return x ^ (x >> 32)


def pattern(seed: int, offset: int, size: int) -> bytes:
    """Return `size` bytes of the pattern from an offset on, which is a multiple of 8."""
    pairs = -(-size // 16)
    ones, steps, lanes, halves = _lanes(pairs)
    whole = 0
    for half in range(2):
        # Every second word, each in a lane of 128 bits, so that no sum runs into the next one.
        x = (steps + base(seed, offset + 8 * half) * ones) & lanes
        whole |= (x ^ ((x >> 32) & halves)) << (64 * half)
    return whole.to_bytes(16 * pairs, "little")[:size]


_FACTOR = 0xD6E8_FEB8_6659_FD93
"""Odd, so that no two words have the same product."""


def fingerprint(data: bytes, offset: int) -> int:
    """Share of some bytes of a part, at an offset that is a multiple of 16, in its fingerprint.

    The fingerprint is the sum of the shares, modulo 2^64. All but the last bytes of the part are whole 16 bytes.
    """
    pairs = len(data) // 16
    ones, steps, lanes, halves = _lanes(pairs)
    whole = int.from_bytes(data[: 16 * pairs], "little")
    total = 0
    for half in range(2):
        x = (((whole >> (64 * half)) & lanes) + steps + base(0, offset + 8 * half) * ones) & lanes
        x = ((x ^ ((x >> 32) & halves)) * _FACTOR) & lanes
        x ^= (x >> 32) & halves
        total += sum(memoryview(x.to_bytes(16 * pairs, "little")).cast("Q"))
    for at in range(16 * pairs, len(data)):
        x = (data[at] + (offset + at) * STEP) & _LOW
        x = ((x ^ (x >> 32)) * _FACTOR) & _LOW
        total += x ^ (x >> 32)
    return total & _LOW


@lru_cache(maxsize=64)
def _lanes(count: int) -> tuple[int, int, int, int]:
    """For `count` lanes: ones, twice the step times their indices, and masks of their low 64 and 32 bits."""
    ones = int.from_bytes((1).to_bytes(16, "little") * count, "little")
    steps = b"".join([((2 * lane * STEP) & _LOW).to_bytes(16, "little") for lane in range(count)])
    return ones, int.from_bytes(steps, "little"), ones * _LOW, ones * 0xFFFF_FFFF


WORD = 8
"""Bytes of a kernel's store."""


class TrialCalls(Protocol):
    """Driver calls for trials; a context must be current."""

    def store(self, address: int, value: int) -> None:
        """Store a word of 8 bytes by a kernel, and wait for it.

        After an illegal access every later call of this process fails (fact 24).
        """

    def meet(self, address: int, value: int) -> bool:
        """Let a kernel wait for a word that the CPU writes to managed memory, and store `value` in response.

        Uses two words at `address`. The kernel gives up after about a second. If the CPU may not access managed memory
        while a kernel runs, the process ends with SIGSEGV.
        """


class ExternalApiMemory(Protocol):
    """Memory that an external API allocated on its GPU; `whole` is the object's size in bytes."""

    whole: int

    def fd(self) -> int:
        """Return a new descriptor, which the caller closes."""

    def read(self, offset: int, count: int) -> bytes:
        """Read bytes by the external API."""

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes by the external API, and wait for it."""

    def free(self) -> None:
        """Free the memory in the external API; repeated calls are ignored. Exported descriptors stay valid."""


class ExternalApiSemaphore(Protocol):
    """Semaphore of an external API: a timeline, whose value is its `counter`, or a binary one."""

    @property
    def counter(self) -> int: ...

    def fd(self) -> int:
        """Return a new descriptor, which the caller closes."""

    def signal(self, value: int = 1) -> None:
        """Signal the semaphore by the external API."""

    def wait(self, value: int, seconds: float) -> bool:
        """Wait for the semaphore by the external API; false if a timeline took too long."""

    def free(self) -> None:
        """Destroy the semaphore in the external API; repeated calls are ignored."""


class ExternalApi(Protocol):
    """An external API on one GPU, as a context manager that frees its objects at the end."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def allocate(self, size: int, *, dedicated: bool = False) -> ExternalApiMemory:
        """Allocate memory that can be exported."""

    def adopt(self, fd: int, size: int) -> ExternalApiMemory:
        """Import memory that a driver exported; ownership of the descriptor passes to the external API (fact 59)."""

    def timeline(self, value: int = 0) -> ExternalApiSemaphore:
        """Create a timeline semaphore that can be exported."""

    def binary(self) -> ExternalApiSemaphore:
        """Create a binary semaphore that can be exported."""
