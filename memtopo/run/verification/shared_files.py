"""Verification of files that other programs share: GPUs read at their registered addresses what the files have.

Both ends of each object are compared. Nothing is written, and the CPU reads the files by their descriptors: a load
behind the end of a file that was shortened would end the process (fact 86).
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
"""Bytes that are compared at each end; at the second end up to 15 more if the size is no multiple of 16."""

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

    def finding(self, expected: object, observed: object) -> Finding:
        """Compare the bytes of the file with those that the GPU has read."""
        return Finding(_ASPECT, f"{self.label} at {self.at:#x} by gpu{self.device}", expected, observed, self.path)


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
        for window in self._windows():
            for _ in range(TRIES):
                before = os.pread(window.fd, window.size, window.file_at)
                if len(before) < window.size:
                    yield window.finding(f"{window.size} bytes", f"{len(before)} bytes: the file was shortened")
                    break
                observed = self._read(window, before)
                if os.pread(window.fd, window.size, window.file_at) == before:
                    yield window.finding(before, observed)
                    break

    def expected(self, index: int) -> int:
        """Number of windows that are compared."""
        del index
        return sum(1 for _ in self._windows())

    def _windows(self) -> Iterator[_Window]:
        for entry in self.geometry.of(PinnedGroup).values():
            if not entry.registered or entry.name not in self.layout.files:
                continue
            fd, last = self.layout.files[entry.name].fd, max(0, entry.size - WINDOW) // ALIGNED * ALIGNED
            ends = {0: min(WINDOW, last or entry.size), last: entry.size - last}
            for index, device in product(range(entry.count), entry.gpus):
                for at, size in ends.items():
                    file_at = entry.offset + index * entry.size + at
                    yield _Window(entry.label(index), at, file_at, size, device, fd, entry.path)

    def _read(self, window: _Window, expected: bytes) -> object:
        """Bytes that a GPU reads: by a copy, and by a kernel if they can be used, of which the fingerprint is known."""
        address = self.layout.address(window.label) + window.at
        with current(self.driver, self.layout.contexts[window.device]):
            copied = self.driver.memcpy_dtoh(address, window.size)
            if copied != expected or not self.kernels or address % ALIGNED:
                return copied
            (loaded,) = self.driver.fingerprint([(address, window.size)])
        return copied if loaded == fingerprint(expected, 0) else f"fingerprint {loaded:#018x} by a kernel"
