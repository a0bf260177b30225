"""Verification of memory that the CPU and GPUs share: the CPU reads what a GPU stores, and a GPU what the CPU writes.

It covers the ends of managed and pinned memory, and of host memory that the host may access, in the process that
created it. The CPU makes copies of such host memory (fact 40), and may make those of pinned memory, so a GPU writes
there by memset or kernels, and reads by kernels alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memtopo.driver.kernels import ALIGNED, Area, pattern
from memtopo.driver.types import Access, HostFlags, Location, LocationKind
from memtopo.kinds.layout import current
from memtopo.kinds.step import Finding
from memtopo.kinds.views import MappedMemory
from memtopo.run.verification.verifier import MappedView, VerificationContext, Verifier, gpu_views

WINDOW = 64
"""Bytes verified at each end; at the second end up to 15 more if the size is no multiple of 16."""

_NODE = Location(LocationKind.HOST_NUMA, 0)
"""Location to query for the host's access: queried as HOST, the driver returns a GPU's access (fact 42)."""

_ASPECT = "both sides"
_GPU_SEED, _CPU_SEED = 0x5EED_0001, 0x5EED_0002


class HostAccessVerifier(Verifier):
    """Memory shared by the CPU and GPUs. `kernels` is true if they are loaded and may be used."""

    action = "verification by bytes"
    aspect = _ASPECT
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
                yield from self._gpu_read(each, written)

    def expected(self, index: int) -> int:
        """Number of windows that are read."""
        del index
        return sum(
            len(_ends(each)) * (len(_host_mappings(each, Access.R)) + len(self._gpu_readers(each)))
            for each in self._shared
        )

    def not_verified(self) -> Iterator[tuple[int, str]]:
        """Windows that a GPU can read by kernels alone."""
        for each in self._shared:
            views = self._gpu_views(each, Access.R) if _host_mappings(each, Access.RW) else []
            if views and not self._gpu_readers(each):
                yield len(_ends(each)) * len(views), "a GPU's own load of host memory takes '--check full'"

    def _gpu_write(self, each: MappedMemory) -> Mapping[int, bytes]:
        """Write both ends by the first GPU with access; return the bytes by offset, or nothing without such a GPU."""
        view = next(iter(self._gpu_views(each, Access.RW)), None)
        if view is None:
            return {}
        driver, start = self._context.driver, self._address(*view.mapping)
        with current(driver, self._context.layout.contexts[view.device]):
            if self._kernels:
                stored = {at: pattern(_GPU_SEED, at, count) for at, count in _ends(each).items()}
                driver.fill([Area(start + at, len(data), _GPU_SEED, at) for at, data in stored.items()])
            else:
                stored = {at: bytes([0x51 + number]) * count for number, (at, count) in enumerate(_ends(each).items())}
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
                yield Finding(_ASPECT, subject, data, observed, each.path)

    def _host_write(self, each: MappedMemory) -> Mapping[int, bytes]:
        """Write both ends by the CPU; return the bytes by offset, or nothing without access."""
        start = next((self._address(*mapping) for mapping in _host_mappings(each, Access.RW)), None)
        if start is None or not self._host_has(Access.RW, each, start):
            return {}
        self._synchronize()
        written = {at: pattern(_CPU_SEED, at, count) for at, count in _ends(each).items()}
        for at, data in written.items():
            self._context.driver.host_write(start + at, data)
        return written

    def _gpu_read(self, each: MappedMemory, written: Mapping[int, bytes]) -> Iterator[Finding]:
        for view in self._gpu_readers(each):
            for at, data in written.items():
                observed = self._gpu_compare(view, at, data)
                subject = f"{each.name} in {view.label} at {view.offset + at:#x} by gpu{view.device}"
                yield Finding(_ASPECT, subject, data, observed, each.path)

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


def _ends(each: MappedMemory) -> dict[int, int]:
    """Number of bytes of each end, by its offset; the ends do not overlap."""
    last = max(0, each.size - WINDOW) // ALIGNED * ALIGNED
    return {0: min(WINDOW, last or each.size), last: each.size - last}
