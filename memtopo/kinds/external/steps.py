"""Steps of external memory and semaphores."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import ClassVar

from msgspec import Struct

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType
from memtopo.kinds.ipc.steps import BufferStep
from memtopo.kinds.layout import LateError, Layout, LayoutTable, current
from memtopo.kinds.objects import ObjectStep
from memtopo.kinds.resources import STREAMS, WAITING, DeviceStep, Wait
from memtopo.kinds.step import ErrorHint, HandleReference, InChange, Phase, Step, StepDescription, Undoing

GRACE = 5.0
"""Seconds that teardown waits for a signal of the producer."""

LAST_SIGNAL = 1.5
"""Seconds after the end of a producer in which its last signal may arrive and other waiting processes give up, so that
they do not take a signal from here for one of the producer."""

_PAUSE = 0.002


class Descriptor(Struct, frozen=True):
    """File descriptor with the device, inode and device type of its file, since the number may have been reused."""

    fd: int
    file: tuple[int, int, int]


DESCRIPTORS = LayoutTable[str, Descriptor]()
"""Descriptors of external objects that the driver has not imported yet."""

SEMAPHORE_HANDLES = LayoutTable[str, int]()

EXTERNAL_HANDLES = LayoutTable[str, int]()
"""External memory. Its mapped buffers are in `Layout.memory`: `frame`, and `frame.y`."""


class DuplicateDescriptor(Step, frozen=True):
    """Duplicate a received descriptor for the driver, which takes ownership of it on import (fact 37).

    A failed import may have closed the duplicate (fact 54), so `undo` closes it only if it still refers to its file.
    """

    label: str
    source: HandleReference

    phase = Phase.IMPORT
    verb = "copy descriptor"
    call = "fcntl"
    undoing = Undoing("close")
    leaks_as = "descriptor of"
    provided = "descriptor", "label"
    required: ClassVar = {"holder": "source.holder"}

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = self.source.duplicate_descriptor(layout.handle_source)
        layout.of(DESCRIPTORS)[self.label] = Descriptor(fd, _file(fd))

    def undo(self, driver: Driver, layout: Layout) -> None:
        duplicate = layout.of(DESCRIPTORS).pop(self.label, None)
        with suppress(OSError):
            if duplicate and _file(duplicate.fd) == duplicate.file:
                os.close(duplicate.fd)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, like=self.source.holder)


class ImportObject(ObjectStep, frozen=True):
    """Base of steps that import a descriptor, of which the driver takes ownership. It has no query for the objects."""

    device: int

    phase = Phase.IMPORT
    in_change = InChange(renews_needs=True)
    required: ClassVar = {"descriptor": "label"}

    def import_descriptor(self, driver: Driver, fd: int) -> int:
        """Make the call in the context of the GPU."""
        raise NotImplementedError

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            found = self.import_descriptor(driver, layout.of(DESCRIPTORS)[self.label].fd)
            self.objects(layout)[self.label] = found
            del layout.of(DESCRIPTORS)[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Destroy the object, at most once: a second call would end the process (fact 57)."""
        if self.label in self.objects(layout):
            self.end(driver, layout, self.objects(layout).pop(self.label))


class ImportMemory(ImportObject, frozen=True):
    """Import memory in the context of its GPU (fact 55).

    The import accepts any size; mapping fails if the size is wrong (fact 53).
    """

    size: int
    kind: MemoryHandleType
    dedicated: bool

    noun = "external"
    table = EXTERNAL_HANDLES
    leaks_as = "external memory"
    verb = "import memory"
    call = "cuImportExternalMemory"
    undoing = Undoing("cuDestroyExternalMemory", "destroy")
    hints: ClassVar = {
        "UNKNOWN": ErrorHint(
            "the descriptor received for {subject} is not external memory, or belongs to a GPU other than {where} "
            "(facts 54, 55)",
            "check the object that the producer sends, and its GPU",
        )
    }

    def import_descriptor(self, driver: Driver, fd: int) -> int:
        return driver.import_external_memory(fd, self.kind, self.size, dedicated=self.dedicated)

    def describe(self) -> StepDescription:
        words = [self.kind.name.lower(), *(["dedicated"] if self.dedicated else [])]
        return StepDescription(self.label, f"gpu{self.device}", self.size, note=", ".join(words))

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),) if device == self.device else ()


class MapExternal(BufferStep, frozen=True):
    """Map `size` bytes of external memory at `offset` as a buffer (fact 53)."""

    memory: str
    offset: int

    phase = Phase.MAP
    aspect = "external"
    leaks_as = "mapped buffer"
    verb = "map buffer"
    call = "cuExternalMemoryGetMappedBuffer"
    undoing = Undoing("cuMemFree", "free")
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "{subject} is smaller than the {bytes} that the spec declares (fact 53)",
            "declare the size that the producer allocated it with",
        )
    }
    required: ClassVar = {"external": "memory"}

    def arguments(self, layout: Layout) -> tuple[int, int, int]:
        return layout.of(EXTERNAL_HANDLES)[self.memory], self.offset, self.size

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size, self.memory)

    def blocks(self) -> tuple[str, ...]:
        return (ImportMemory.leak(self.memory),)


def _file(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_rdev


class ImportSemaphore(ImportObject, frozen=True):
    """Import a semaphore."""

    kind: SemaphoreHandleType

    noun = "semaphore"
    table = SEMAPHORE_HANDLES
    leaks_as = "semaphore"
    verb = "import semaphore"
    call = "cuImportExternalSemaphore"
    undoing = Undoing("cuDestroyExternalSemaphore", "destroy")
    hints: ClassVar = {
        "UNKNOWN": ErrorHint(
            "the descriptor received for {subject} is not a semaphore (fact 54)",
            "check the object that the producer sends",
        )
    }

    def import_descriptor(self, driver: Driver, fd: int) -> int:
        return driver.import_external_semaphore(fd, self.kind)

    def describe(self) -> StepDescription:
        kind = "timeline" if self.kind is SemaphoreHandleType.TIMELINE_FD else "binary"
        return StepDescription(self.label, f"gpu{self.device}", note=kind)

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        return (self.leak_name(),)


class AwaitStream(DeviceStep, frozen=True):
    """Poll a stream until its waits have ended. A wait in the driver could block forever (fact 58).

    `undo` signals a semaphore itself if its producer has disconnected; a process that starts to wait afterwards takes
    this for a signal of the producer. If the wait does not end, `stays` has the leak names of the resources that cannot
    be released before the process ends.
    """

    stays: tuple[str, ...]

    phase = Phase.SETTLE
    verb = "await stream"
    call = "cuStreamQuery"
    undoing = Undoing("cuStreamQuery")
    leaks_as = "wait of"
    required: ClassVar = {"stream": "device"}

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.stream_query(layout.of(STREAMS)[self.device])

    def undo(self, driver: Driver, layout: Layout) -> None:
        wait = layout.of(WAITING).get(self.device)
        if wait is None:
            return
        ended = self._done(driver, layout, min(GRACE, layout.timeout), wait)
        if not ended and layout.handle_source.gone(wait.holder) and not self._done(driver, layout, LAST_SIGNAL):
            with suppress(LateError):  # it is signalled; the wait is what counts
                self._signal(driver, layout, wait)
            self._done(driver, layout, GRACE)
        if self.device in layout.of(WAITING):
            value = f" to reach {wait.value:,}" if wait.value else ""
            message = f"it waits for semaphore {wait.semaphore!r} of {wait.holder}{value}, which was not signalled"
            raise MemtopoError(f"{message}; the end of this process ends the wait")

    def blocks(self) -> tuple[str, ...]:
        return self.stays

    def _done(self, driver: Driver, layout: Layout, seconds: float, wait: Wait | None = None) -> bool:
        """Return true if the stream is done in time. Returns early if the producer of `wait` disconnects."""
        until = time.monotonic() + seconds
        while not driver.stream_query(layout.of(STREAMS)[self.device]):
            if time.monotonic() > until or (wait and layout.handle_source.gone(wait.holder)):
                return False
            time.sleep(_PAUSE)
        del layout.of(WAITING)[self.device]
        return True

    def _signal(self, driver: Driver, layout: Layout, wait: Wait) -> None:
        """Signal in another stream, since this one is blocked."""
        with current(driver, layout.contexts[self.device]):
            stream = driver.stream_create()
            try:
                driver.signal_external_semaphore(layout.of(SEMAPHORE_HANDLES)[wait.semaphore], wait.value, stream)
            finally:
                driver.stream_destroy(stream)
