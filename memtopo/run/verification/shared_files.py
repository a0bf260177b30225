"""Verification of files that other programs share: GPUs load at their registered addresses what the files have.

Both ends of each object are compared, by kernels alone: the driver has the CPU make copies of such memory, which would
end the process behind the end of a file that was shortened (fact 86). Nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import ALIGNED, KernelDriver, fingerprint
from memtopo.geometry import Geometry
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.pinned import PinnedGroup
from memtopo.kinds.step import Finding
from memtopo.run.verification.verifier import Verifier

WINDOW = 64
"""Bytes that are compared at each end, from a multiple of 16 on; at the second end up to 15 more."""

TRIES = 8
"""Number of tries to read the same bytes of a file before and after a GPU has read them."""

_ASPECT = "shared file"


class _Window(NamedTuple):
    """Bytes of an object of an entry, at an offset in it and at one in the file, as one GPU reads them."""

    label: str
    at: int
    file_at: int
    size: int
    device: int
    fd: int
    path: Path

    @property
    def subject(self) -> str:
        """Place of the bytes, and the GPU that loads them."""
        return f"{self.label} at {self.at:#x} by gpu{self.device}"


@dataclass(frozen=True, slots=True)
class SharedFileVerifier(Verifier):
    """The ends of all registered objects of a process. `kernels` is true if they are loaded and may be used.

    Bytes that the other program writes at the time are not counted.
    """

    geometry: Geometry
    driver: KernelDriver
    layout: Layout
    kernels: bool

    action = "comparison with shared files"
    aspect = _ASPECT
    verbs = "", "compare"

    def read(self, index: int) -> Iterator[Finding]:
        """Compare. Raises `DriverError`."""
        del index
        for window in self._windows() if self.kernels else ():
            yield from self._compare(window)

    def expected(self, index: int) -> int:
        """Number of windows that are compared."""
        del index
        return sum(1 for _ in self._windows()) if self.kernels else 0

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """All windows, without kernels."""
        if not self.kernels and (count := sum(1 for _ in self._windows())):
            yield count, "a GPU's own load of host memory takes '--check full'"

    def _windows(self) -> Iterator[_Window]:
        for entry in self.geometry.of(PinnedGroup).values():
            if entry.registered and entry.name in self.layout.files:
                fd = self.layout.files[entry.name].fd
                for index, device in product(range(entry.count), entry.gpus):
                    for at, size in _ends(index * entry.size, entry.size):
                        file_at = entry.offset + index * entry.size + at
                        yield _Window(entry.label(index), at, file_at, size, device, fd, entry.path)

    def _compare(self, window: _Window) -> Iterator[Finding]:
        """Compare the bytes of a window, unless the other program writes them all the time."""
        address = self.layout.address(window.label) + window.at
        for _ in range(TRIES):
            before = os.pread(window.fd, window.size, window.file_at)
            if len(before) < window.size:
                seen = f"{len(before)} bytes: the file was shortened"
                yield Finding(_ASPECT, window.subject, f"{window.size} bytes", seen, window.path)
                return
            with current(self.driver, self.layout.contexts[window.device]):
                (loaded,) = self.driver.fingerprint([(address, window.size)])
            if os.pread(window.fd, window.size, window.file_at) == before:
                expected = f"fingerprint {fingerprint(before, 0):#018x}"
                yield Finding(_ASPECT, window.subject, expected, f"fingerprint {loaded:#018x}", window.path)
                return


def _ends(start: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and size of the bytes at both ends of an object that begins at `start` of its memory.

    Kernels load from multiples of 16 on.
    """
    first = -start % ALIGNED
    last = max(first, (start + size - WINDOW) // ALIGNED * ALIGNED - start)
    if first < last:
        yield first, min(WINDOW, last - first)
    if last < size:
        yield last, size - last
