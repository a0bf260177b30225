"""Steps that map a file of another program, and register the mapping with the driver."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from memtopo.common.units import exact
from memtopo.driver.protocol import Driver
from memtopo.driver.types import RegisterFlags
from memtopo.kinds.layout import Layout, Reservation, SharedFile, current
from memtopo.kinds.pinned.files import UnsuitableFile, length, map_file, open_file, unmap_file
from memtopo.kinds.pinned.steps import PinnedStep
from memtopo.kinds.step import ErrorHint, Finding, HandleReference, Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class MapFile(Step):
    """Map `size` bytes of a file into this process: by its path, or by the descriptor that a producer sends."""

    label: str
    size: int
    source: str | HandleReference
    offset: int
    writable: bool

    phase = Phase.IMPORT
    verb = "map file"
    undo_verb = "unmap file"
    call = "mmap"
    undo_call = "munmap"

    @property
    def provides(self) -> Hashable:
        return ("file", self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("holder", self.source.holder),) if isinstance(self.source, HandleReference) else ()

    @property
    def file(self) -> str:
        """Name of the file in messages: its path, or the export of a producer."""
        return self.source.text if isinstance(self.source, HandleReference) else self.source

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = self._open(layout)
        try:
            layout.files[self.label] = map_file(fd, self.file, self.offset, self.size, writable=self.writable)
        except BaseException:
            os.close(fd)
            raise

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.label in layout.files:
            unmap_file(layout.files[self.label])
            del layout.files[self.label]

    @property
    def dry(self) -> Step:
        return DryFile(self.path, self.label, self.size, self.source, self.offset, self.writable)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the length of the file: behind its end, the CPU is refused by SIGBUS (fact 86)."""
        needed, has = self.offset + self.size, length(layout.files[self.label].fd)
        expected = f"{exact(needed)} or more"
        hint = "the program that shares the file has shortened it; seal it with F_SEAL_SHRINK"
        yield Finding("file", self.label, expected, expected if has >= needed else exact(has), self.path, hint)

    def describe(self) -> StepDescription:
        note = "" if self.writable else "read-only"
        return StepDescription(self.label, self.file, self.size, note=note)

    def leak_name(self) -> str:
        return file_name(self.label)

    def _open(self, layout: Layout) -> int:
        """Open the file, or duplicate the received descriptor, which its source closes."""
        if isinstance(self.source, str):
            return open_file(self.source, writable=self.writable)
        received = self.source.fetch_descriptor(layout.handle_source)
        try:
            return fcntl.fcntl(received, fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError as error:
            message = f"{self.file}: the received descriptor cannot be duplicated: {error.strerror}"
            raise UnsuitableFile(message, hint="check the descriptor that the producer exports") from error


@dataclass(frozen=True, slots=True)
class DryFile(MapFile):
    """A file that is not mapped: it has an address by itself."""

    def do(self, driver: Driver, layout: Layout) -> None:
        before = layout.files.values()
        address = max((each.address + each.size for each in before), default=_DRY_ADDRESSES)
        layout.files[self.label] = SharedFile(-1, address, self.size)

    def undo(self, driver: Driver, layout: Layout) -> None:
        layout.files.pop(self.label, None)


_DRY_ADDRESSES = 3 << 45


@dataclass(frozen=True, slots=True)
class RegisterMemory(PinnedStep):
    """Register a mapped file, in the context of the first of `gpus` (fact 85), as objects of equal size."""

    objects: tuple[str, ...]
    gpus: tuple[int, ...]
    flags: RegisterFlags

    phase = Phase.IMPORT
    verb = "register"
    undo_verb = "unregister"
    call = "cuMemHostRegister"
    undo_call = "cuMemHostUnregister"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "the pages of {subject} cannot be locked: its file was shortened, or is on a disk (fact 85)",
            "share a memfd, or a file in /dev/shm, and seal it with F_SEAL_SHRINK",
        ),
        "OUT_OF_MEMORY": ErrorHint(
            "{bytes} of the host's memory cannot be page-locked", "'free -h' shows the free memory"
        ),
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return ("file", self.label), *(("context", device) for device in self.gpus)

    def do(self, driver: Driver, layout: Layout) -> None:
        address, each = layout.files[self.label].address, self.size // len(self.objects)
        with current(driver, layout.contexts[self.gpus[0]]):
            driver.mem_host_register(address, self.size, self.flags)
            for number, label in enumerate(self.objects):
                layout.pinned[label] = Reservation(address + number * each, each)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.objects[0] in layout.pinned:
            driver.mem_host_unregister(self.address(layout))
            for label in self.objects:
                del layout.pinned[label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        reported = self.flags & ~RegisterFlags.READ_ONLY  # fact 85
        return self.check_access(driver, layout, self.gpus, reported)

    def address(self, layout: Layout) -> int:
        return layout.pinned[self.objects[0]].address

    def describe(self) -> StepDescription:
        note = "read-only" if RegisterFlags.READ_ONLY in self.flags else ""
        return StepDescription(self.label, "host", self.size, note=note)

    def leak_name(self) -> str:
        return f"registered memory {self.label}"

    def blocks(self) -> tuple[str, ...]:
        """The mapping: the GPUs would access pages that are no longer those of its addresses (fact 86)."""
        return (file_name(self.label),)

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),)


def file_name(label: str) -> str:
    """Leak name of a mapped file."""
    return f"mapped file of {label}"
