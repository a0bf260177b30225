"""Verification of what GPUs share with the CPU and with other programs: semaphores, external and host memory, files.

Both ends of every mapped buffer are read; external memory is never written. The driver is never left to block on a
semaphore, since only the signal would end that (fact 58).

The CPU reads what a GPU stores in memory that they share, and a GPU what the CPU writes: in managed and pinned memory,
and in host memory that the host may access, in the process that created it. The CPU makes copies of such host memory
(fact 40), and may make those of pinned memory, so a GPU writes there by memset or kernels, and reads by kernels alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from msgspec import Struct

from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import ALIGNED, Area, KernelDriver, fingerprint, pattern
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, HostFlags, Location, LocationKind
from memtopo.geometry import Geometry
from memtopo.kinds.external import ExternalObject
from memtopo.kinds.external.semaphores import ImportedSemaphore
from memtopo.kinds.external.steps import SEMAPHORE_HANDLES
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.pinned import PinnedGroup
from memtopo.kinds.pinned.steps import FILES
from memtopo.kinds.resources import STREAMS, WAITING, Wait
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory
from memtopo.run.verification.verifier import MappedView, Unsignalled, VerificationContext, Verifier, gpu_views

WINDOW = 64
"""Bytes verified at each end; where kernels load them, from a multiple of 16 on, at the second end up to 15 more."""

_PAUSES = 0.0005, 0.05
"""Seconds between the first two queries of a stream, which double, and at most."""

LAST_SIGNAL = 0.5
"""Seconds in which the last signal of a producer that has ended may still come."""


class ExternalVerifier(Struct, Verifier, frozen=True):
    """All waits in ascending order of their values, then the reads of memory, then the signals.

    A semaphore that another entry of this process waits for is signalled as soon as its own wait is over. `poll` is
    called while waiting, and raises if a stop of the run was requested. Raises `Unsignalled` and `DriverError`.
    """

    geometry: Geometry
    driver: Driver
    layout: Layout
    poll: Callable[[], None]

    action = "waits and signals"
    aspect = "wait"
    verbs = "", "synchronize"

    def read(self, index: int) -> Iterator[Finding]:
        """Wait, read and signal."""
        del index
        semaphores = sorted(
            self.geometry.of(ImportedSemaphore).values(), key=lambda each: -1 if each.wait is None else each.wait
        )
        for entry in semaphores:
            if entry.wait is not None:
                yield self._wait(entry, entry.wait)
            if entry.signal is not None and self._awaited_here(entry):
                yield self._signal(entry, entry.signal)
        yield from self._read_memory()
        for entry in semaphores:
            if entry.signal is not None and not self._awaited_here(entry):
                yield self._signal(entry, entry.signal)

    def expected(self, index: int) -> int:
        """Number of waits."""
        del index
        return sum(1 for entry in self.geometry.of(ImportedSemaphore).values() if entry.wait is not None)

    def _awaited_here(self, entry: ImportedSemaphore) -> bool:
        """Return whether another entry waits for the same semaphore."""
        others = (
            each for each in self.geometry.of(ImportedSemaphore).values() if each is not entry and each.wait is not None
        )
        return any(other.origin.identity == entry.origin.identity for other in others)

    def _wait(self, entry: ImportedSemaphore, value: int) -> Finding:
        device, waiting = entry.location.id, self.layout.of(WAITING)
        # Noted first: the teardown must find every wait that a stream may have.
        waiting[device] = Wait(entry.name, value, entry.origin.of(0)[0])
        self.driver.wait_external_semaphore(
            self.layout.of(SEMAPHORE_HANDLES)[entry.name], value, self.layout.of(STREAMS)[device]
        )
        missing = f"did not reach {value:,}" if value else "was not signalled"
        self._await_stream(entry, missing, waiting[device].holder)
        del waiting[device]
        return Finding("wait", _subject(entry, value), "done", "done", entry.path)

    def _signal(self, entry: ImportedSemaphore, value: int) -> Finding:
        stream = self.layout.of(STREAMS)[entry.location.id]
        self.driver.signal_external_semaphore(self.layout.of(SEMAPHORE_HANDLES)[entry.name], value, stream)
        self._await_stream(entry, f"was not signalled by {entry.location}", None)
        return Finding("signal", _subject(entry, value), "done", "done", entry.path)

    def _await_stream(self, entry: ImportedSemaphore, missing: str, holder: str | None) -> None:
        """Poll a stream until it is done, has timed out, or depends on a holder that has ended."""
        message = f"semaphore {entry.name!r} of {entry.origin.of(0)[0]} {missing}"
        start, ended_at, pause = time.monotonic(), None, _PAUSES[0]
        while not self.driver.stream_query(self.layout.of(STREAMS)[entry.location.id]):
            self.poll()
            now = time.monotonic()
            if ended_at is None and holder and self.layout.handle_source.gone(holder):
                ended_at = now
            if ended_at is not None and now - ended_at > LAST_SIGNAL:
                message = f"{message}: {holder} has ended"
                raise Unsignalled(message, entry.path, "keep the producer alive until it has signalled")
            if now - start > self.layout.timeout:
                message = f"{message} within {self.layout.timeout:g} s"
                raise Unsignalled(message, entry.path, "check the signals of its producer, or increase --timeout")
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _read_memory(self) -> Iterator[Finding]:
        for entry in self.geometry.of(ExternalObject).values():
            for label in (part.label for part in entry.mapped):
                address, size = self.layout.buffers[label]
                ends = dict.fromkeys((0, max(0, size - WINDOW)))
                with current(self.driver, self.layout.contexts[entry.location.id]):
                    observed = [self.driver.memcpy_dtoh(address + at, min(WINDOW, size)) for at in ends]
                for at, data in zip(ends, observed, strict=True):
                    subject = f"{label} at {at:#x} by {entry.location}"
                    yield Finding("readable", subject, min(WINDOW, size), len(data), entry.path)


def _subject(entry: ImportedSemaphore, value: int) -> str:
    """Name of a semaphore with its value; a binary one has no value."""
    return f"{entry.name} {value:,}" if value else entry.name


TRIES = 8
"""Number of tries to read the same bytes of a file before and after a GPU has read them."""


class _FileWindow(Struct, frozen=True):
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


class SharedFileVerifier(Struct, Verifier, frozen=True):
    """The ends of all registered objects of a process. `kernels` is true if they are loaded and may be used.

    Bytes that the other program writes at the time are not counted.
    """

    geometry: Geometry
    driver: KernelDriver
    layout: Layout
    kernels: bool

    action = "comparison with shared files"
    aspect = "shared file"
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
            yield count, "loads of host memory by a GPU require '--check full'"

    def _windows(self) -> Iterator[_FileWindow]:
        for entry in self.geometry.of(PinnedGroup).values():
            if entry.registered and entry.name in self.layout.of(FILES):
                fd = self.layout.of(FILES)[entry.name].fd
                for index, device in product(range(entry.count), entry.gpus):
                    for at, size in _ends(index * entry.size, entry.size):
                        file_at = entry.offset + index * entry.size + at
                        yield _FileWindow(entry.label(index), at, file_at, size, device, fd, entry.path)

    def _compare(self, window: _FileWindow) -> Iterator[Finding]:
        """Compare the bytes of a window, unless the other program writes them all the time."""
        address = self.layout.address(window.label) + window.at
        for _ in range(TRIES):
            before = os.pread(window.fd, window.size, window.file_at)
            if len(before) < window.size:
                seen = f"{len(before)} bytes: the file was shortened"
                yield Finding(self.aspect, window.subject, f"{window.size} bytes", seen, window.path)
                return
            with current(self.driver, self.layout.contexts[window.device]):
                (loaded,) = self.driver.fingerprint([(address, window.size)])
            if os.pread(window.fd, window.size, window.file_at) == before:
                expected = f"fingerprint {fingerprint(before, 0):#018x}"
                yield Finding(self.aspect, window.subject, expected, f"fingerprint {loaded:#018x}", window.path)
                return


def _ends(start: int, size: int) -> list[tuple[int, int]]:
    """Offset and size of the bytes at both ends of an object that begins at `start` of its memory.

    Kernels load from multiples of 16 on.
    """
    first = -start % ALIGNED
    last = max(first, (start + size - WINDOW) // ALIGNED * ALIGNED - start)
    return [(at, count) for at, count in ((first, min(WINDOW, last - first)), (last, size - last)) if count > 0]


_NODE = Location(LocationKind.HOST_NUMA, 0)
"""Location to query for the host's access: queried as HOST, the driver returns a GPU's access (fact 42)."""

_GPU_SEED, _CPU_SEED = 0x5EED_0001, 0x5EED_0002


class HostAccessVerifier(Verifier):
    """Memory shared by the CPU and GPUs. `kernels` is true if they are loaded and may be used."""

    action = "verification by bytes"
    aspect = "both sides"
    verbs = "", "verify host access"

    def __init__(self, context: VerificationContext, *, kernels: bool) -> None:
        self._context, self._kernels = context, kernels
        self._shared = [
            each
            for each in context.own_memory
            if each.ours and each.identity.owner == context.process and _host_mappings(each, Access.R)
        ]

    def read(self, index: int) -> Iterator[Finding]:
        """Write from each side and read from the other. Raises `DriverError`."""
        del index
        for each in self._shared:
            self._context.raise_if_stopped()
            if stored := self._gpu_write(each):
                yield from self._host_read(each, stored)
            if self._gpu_readers(each) and (written := self._host_write(each)):
                for view in self._gpu_readers(each):
                    for at, data in written.items():
                        observed = self._gpu_compare(view, at, data)
                        subject = f"{each.name} in {view.label} at {view.offset + at:#x} by gpu{view.device}"
                        yield Finding(self.aspect, subject, data, observed, each.path)

    def expected(self, index: int) -> int:
        """Number of windows that are read."""
        del index
        return sum(
            len(_ends(0, each.size)) * (len(_host_mappings(each, Access.R)) + len(self._gpu_readers(each)))
            for each in self._shared
        )

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Windows that a GPU can read by kernels alone."""
        for each in self._shared:
            views = self._gpu_views(each, Access.R) if _host_mappings(each, Access.RW) else []
            if views and not self._gpu_readers(each):
                yield len(_ends(0, each.size)) * len(views), "loads of host memory by a GPU require '--check full'"

    def _gpu_write(self, each: MappedMemory) -> Mapping[int, bytes]:
        """Write both ends by the first GPU with access; return the bytes by offset, or nothing without such a GPU."""
        view = next(iter(self._gpu_views(each, Access.RW)), None)
        if view is None:
            return {}
        driver, start = self._context.driver, self._address(*view.mapping)
        with current(driver, self._context.layout.contexts[view.device]):
            if self._kernels:
                stored = {at: pattern(_GPU_SEED, at, count) for at, count in _ends(0, each.size)}
                driver.fill([Area(start + at, len(data), _GPU_SEED, at) for at, data in stored.items()])
            else:
                stored = {at: bytes([0x51 + number]) * count for number, (at, count) in enumerate(_ends(0, each.size))}
                for at, data in stored.items():
                    driver.memset_d8(start + at, data[0], len(data))
        return stored

    def _host_read(self, each: MappedMemory, stored: Mapping[int, bytes]) -> Iterator[Finding]:
        self._synchronize()
        for label, offset in _host_mappings(each, Access.R):
            for at, data in stored.items():
                address = self._address(label, offset) + at
                accessible = self._host_has(Access.R, each, address)
                observed = self._context.driver.host_read(address, len(data)) if accessible else "no access"
                subject = f"{each.name} in {label} at {offset + at:#x} by host"
                yield Finding(self.aspect, subject, data, observed, each.path)

    def _host_write(self, each: MappedMemory) -> Mapping[int, bytes]:
        """Write both ends by the CPU; return the bytes by offset, or nothing without access."""
        start = next((self._address(*mapping) for mapping in _host_mappings(each, Access.RW)), None)
        if start is None or not self._host_has(Access.RW, each, start):
            return {}
        self._synchronize()
        written = {at: pattern(_CPU_SEED, at, count) for at, count in _ends(0, each.size)}
        for at, data in written.items():
            self._context.driver.host_write(start + at, data)
        return written

    def _gpu_compare(self, view: MappedView, at: int, expected: bytes) -> object:
        """Bytes that a GPU reads at an offset; where kernels compare them, the first word that differs."""
        driver, address = self._context.driver, self._address(*view.mapping) + at
        with current(driver, self._context.layout.contexts[view.device]):
            if not self._kernels:
                return driver.memcpy_dtoh(address, len(expected))
            found = driver.verify([Area(address, len(expected), _CPU_SEED, at)])
        return expected if not found.mismatches else f"{found.actual:#018x} at {at + found.offset:#x}"

    def _gpu_readers(self, each: MappedMemory) -> Sequence[MappedView]:
        """Views through which a GPU itself reads."""
        managed = each.location.kind is LocationKind.GPU
        return self._gpu_views(each, Access.R) if managed or self._kernels else ()

    def _gpu_views(self, each: MappedMemory, access: Access) -> list[MappedView]:
        return list(gpu_views(self._context.process, each, access))

    def _synchronize(self) -> None:
        """Wait for every GPU: without concurrent access, the CPU may not touch managed memory before."""
        for context in self._context.layout.contexts.values():
            with current(self._context.driver, context):
                self._context.driver.ctx_synchronize()

    def _host_has(self, access: Access, each: MappedMemory, address: int) -> bool:
        """Query the access of the CPU: a read or write without it ends the process (facts 21, 39, 40)."""
        driver = self._context.driver
        if each.by_kernels:
            return True
        if not each.addressed:
            return driver.mem_get_access(address, _NODE) & access == access
        view = next(iter(self._gpu_views(each, Access.R)))
        with current(driver, self._context.layout.contexts[view.device]):
            if each.location.kind is LocationKind.GPU:
                return driver.pointer_is_managed(address)
            return bool(driver.mem_host_get_flags(address) & HostFlags.DEVICEMAP)

    def _address(self, label: str, offset: int) -> int:
        return self._context.layout.address(label) + offset


def _host_mappings(each: MappedMemory, access: Access) -> list[tuple[str, int]]:
    """Mappings, as range or buffer and offset, that the host has this access to."""
    return [
        (label, offset)
        for label, offset, grants in each.views
        for grant in grants
        if grant.location.kind is not LocationKind.GPU and grant.access & access == access
    ]
