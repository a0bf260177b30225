"""Steps of page-locked memory: allocated, or a file of another program that is mapped and registered."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Hashable, Iterator
from contextlib import suppress
from enum import IntFlag
from typing import ClassVar

from msgspec import Struct

from memtopo.common.errors import Failed, on_failure
from memtopo.common.files import closing_fd
from memtopo.common.mapped_files import map_shared, unmap
from memtopo.common.units import exact
from memtopo.driver.protocol import Driver
from memtopo.driver.types import WHOLE_HOST, HostFlags, Location, RegisterFlags
from memtopo.kinds.layout import Layout, LayoutTable, Reservation, current
from memtopo.kinds.objects import ObjectStep
from memtopo.kinds.step import ErrorHint, Finding, HandleReference, Phase, Readable, Step, StepDescription, Undoing

PINNED = HostFlags.PORTABLE | HostFlags.DEVICEMAP
"""Flags of all allocations: with unified addressing, memory is mapped and portable without them, too (fact 74)."""


_BLOCK = 2 << 20
"""Bytes of the blocks that smaller allocations share (fact 74)."""


class SharedFile(Struct, frozen=True):
    """File that another program shares, mapped at `address` with `size` bytes; its descriptor stays open."""

    fd: int
    address: int
    size: int


FILES = LayoutTable[str, SharedFile]()
"""Mapped files of other programs, by the name of the entry that registers them."""


class PinnedStep(ObjectStep, frozen=True):
    """Base of steps that page-lock `size` bytes, in the context of the first of `gpus` and for all of them."""

    size: int
    gpus: tuple[int, ...]

    noun = "pinned memory"
    table = "memory"
    addressed = True

    def check_access(self, driver: Driver, layout: Layout, flags: IntFlag, of_block: int = 0) -> Iterator[Finding]:
        """Compare the flags, and the address for each GPU, which is that for the CPU (facts 74, 85).

        Flags `of_block` are those of what was allocated first in a block, by whatever code of the process.
        """
        address = self.address(layout)
        with current(driver, layout.contexts[self.gpus[0]]):
            found = type(flags)(driver.mem_host_get_flags(address) & ~of_block | flags & of_block)
        yield Finding("flags", self.label, _words(flags), _words(found), self.path)
        for device in self.gpus:
            with current(driver, layout.contexts[device]):
                seen = driver.mem_host_get_device_pointer(address)
            yield Finding("device address", f"{self.label} by gpu{device}", hex(address), hex(seen), self.path)

    def address(self, layout: Layout) -> int:
        """Address of the memory in a layout."""
        return layout.memory[self.label].address

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),)


class AllocatePinned(PinnedStep, frozen=True):
    """Allocate page-locked host memory (fact 74)."""

    flags: HostFlags

    leaks_as = "page-locked memory"
    phase = Phase.CREATE
    verb = "allocate pinned"
    call = "cuMemHostAlloc"
    undoing = Undoing("cuMemFreeHost", "free pinned")
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "{bytes} of the host's memory cannot be page-locked: it has less free memory, or a limit in WSL (fact 77)",
            "'free -h' shows the free memory; declare less of it, or offload to a GPU",
        )
    }

    @property
    def allocates(self) -> tuple[Location, int]:
        return WHOLE_HOST, self.size

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return tuple(("context", device) for device in self.gpus)

    @property
    def readable(self) -> Readable:
        return Readable(self.provides, self.label, 0, self.size, self.gpus)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.gpus[0]]):
            layout.memory[self.label] = Reservation(driver.mem_host_alloc(self.size, self.flags), self.size)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        address = self.address(layout)
        with current(driver, layout.contexts[self.gpus[0]]):
            base, size = driver.mem_get_address_range(address)
        yield Finding("pinned", self.label, (hex(address), self.size), (hex(base), size), self.path)
        of_block = HostFlags.PORTABLE if self.size < _BLOCK else HostFlags.NONE
        yield from self.check_access(driver, layout, self.flags, of_block)

    def describe(self) -> StepDescription:
        note = "write-combined" if HostFlags.WRITECOMBINED in self.flags else ""
        return StepDescription(self.label, "host", self.size, note=note)


def _words(flags: IntFlag) -> str:
    """Flags as words: `portable, devicemap`."""
    return ", ".join(str(flag.name or hex(flag)).lower() for flag in flags) or "none"


class MapFile(ObjectStep, frozen=True):
    """Map `size` bytes of a file into this process: by its path, or by the descriptor that a producer sends."""

    size: int
    source: str | HandleReference
    offset: int
    writable: bool

    noun = "file"
    table = FILES
    leaks_as = "mapped file of"
    phase = Phase.IMPORT
    verb = "map file"
    call = "mmap"
    undoing = Undoing("munmap", "unmap file")

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("holder", self.source.holder),) if isinstance(self.source, HandleReference) else ()

    @property
    def file(self) -> str:
        """Name of the file in messages: its path, or the export of a producer."""
        return self.source.text if isinstance(self.source, HandleReference) else self.source

    def do(self, driver: Driver, layout: Layout) -> None:
        if isinstance(self.source, str):
            fd = open_file(self.source, writable=self.writable)
        else:  # its source closes what it has received
            fd = self.source.duplicate_descriptor(layout.handle_source, UnsuitableFile)
        with on_failure(os.close, fd):
            layout.of(FILES)[self.label] = map_file(fd, self.file, self.offset, self.size, writable=self.writable)

    def end(self, driver: Driver, layout: Layout, found: SharedFile) -> None:
        unmap_file(found)

    @property
    def dry(self) -> Step:
        return DryFile(self.path, self.label, self.size, self.source, self.offset, self.writable)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the length of the file: behind its end, the CPU is refused by SIGBUS (fact 86)."""
        needed, has = self.offset + self.size, os.fstat(layout.of(FILES)[self.label].fd).st_size
        expected = f"{exact(needed)} or more"
        hint = "the program that shares the file has shortened it; seal it with F_SEAL_SHRINK"
        yield Finding("file", self.label, expected, expected if has >= needed else exact(has), self.path, hint)

    def describe(self) -> StepDescription:
        note = "" if self.writable else "read-only"
        return StepDescription(self.label, self.file, self.size, note=note)


class DryFile(MapFile, frozen=True):
    """A file that is not mapped: it has an address by itself."""

    def do(self, driver: Driver, layout: Layout) -> None:
        before = layout.of(FILES).values()
        address = max((each.address + each.size for each in before), default=_DRY_ADDRESSES)
        layout.of(FILES)[self.label] = SharedFile(-1, address, self.size)

    def end(self, driver: Driver, layout: Layout, found: SharedFile) -> None:
        """Nothing: no call was made."""


_DRY_ADDRESSES = 3 << 45


class RegisterMemory(PinnedStep, frozen=True):
    """Register a mapped file, in the context of the first of `gpus` (fact 85), as objects of equal size."""

    labels: tuple[str, ...]
    flags: RegisterFlags

    leaks_as = "registered memory"
    phase = Phase.IMPORT
    verb = "register"
    call = "cuMemHostRegister"
    undoing = Undoing("cuMemHostUnregister", "unregister")
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
        address, each = layout.of(FILES)[self.label].address, self.size // len(self.labels)
        with current(driver, layout.contexts[self.gpus[0]]):
            driver.mem_host_register(address, self.size, self.flags)
            for number, label in enumerate(self.labels):
                layout.memory[label] = Reservation(address + number * each, each)

    def undo(self, driver: Driver, layout: Layout) -> None:
        if self.labels[0] in layout.memory:
            driver.mem_host_unregister(self.address(layout))
            for label in self.labels:
                del layout.memory[label]

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        reported = self.flags & ~RegisterFlags.READ_ONLY  # fact 85
        return self.check_access(driver, layout, reported)

    def address(self, layout: Layout) -> int:
        return layout.memory[self.labels[0]].address

    def describe(self) -> StepDescription:
        note = "read-only" if RegisterFlags.READ_ONLY in self.flags else ""
        return StepDescription(self.label, "host", self.size, note=note)

    def blocks(self) -> tuple[str, ...]:
        """The mapping: the GPUs would access pages that are no longer those of its addresses (fact 86)."""
        return (MapFile.leak(self.label),)


class UnsuitableFile(Failed):
    """A file that cannot be mapped as declared."""


def open_file(path: str, *, writable: bool) -> int:
    """Open a regular file by its path; nothing else is opened, since that may wait or have effects.

    Raises `UnsuitableFile`.
    """
    try:
        with closing_fd(os.open(path, os.O_PATH | os.O_CLOEXEC)) as found:
            _require_regular(found, path)
            # By its descriptor: the path may name another file by now.
            mode = os.O_RDWR if writable else os.O_RDONLY
            return os.open(f"/proc/self/fd/{found}", mode | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        hint = _HINTS.get(type(error))
        message = f"{path!r} cannot be opened for {'reading and writing' if writable else 'reading'}: {_reason(error)}"
        raise UnsuitableFile(message, hint=hint) from error


def map_file(fd: int, name: str, offset: int, size: int, *, writable: bool) -> SharedFile:
    """Map `size` bytes of an open file from an offset on; `name` is that of messages. Raises `UnsuitableFile`.

    The file must have these bytes: an access behind its end would end the process by SIGBUS.
    """
    _require_regular(fd, name)
    if (end := offset + size) > (has := os.fstat(fd).st_size):
        message = f"{name!r} has {exact(has)}, and {exact(end)} of it are declared"
        raise UnsuitableFile(message, hint="declare the size that the other program gave it")
    whole = -(-size // _unit(fd)) * _unit(fd)
    try:
        return SharedFile(fd, map_shared(fd, offset, whole, writable=writable), whole)
    except OSError as error:
        hint = "its writable mappings may be sealed off, or limited to reading: 'read_only: true'" if writable else None
        raise UnsuitableFile(f"{name!r} cannot be mapped: {_reason(error)}", hint=hint) from error


def unmap_file(mapped: SharedFile) -> None:
    """Unmap a file and close its descriptor. Raises `OSError` with both as they were."""
    unmap(mapped.address, mapped.size)
    with suppress(OSError):
        os.close(mapped.fd)


def _unit(fd: int) -> int:
    """Unit of the length of a mapping: of huge pages in their file system, where it is the preferred block."""
    block = os.fstat(fd).st_blksize
    return mmap.PAGESIZE if block % mmap.PAGESIZE else block


def _require_regular(fd: int, name: str) -> None:
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        what = next((word for is_kind, word in _KINDS if is_kind(mode)), "no file")
        raise UnsuitableFile(f"{name!r} is {what}, but only memory in a regular file can be registered", hint=_FILE)


_FILE = "name a file in /dev/shm, or a memfd: /proc/PID/fd/N"
_HINTS = {
    PermissionError: "write 'read_only: true' if it is read-only",
    FileNotFoundError: "first start the program that creates it",
}
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISLNK, "a link"),
)  # fmt: skip


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
