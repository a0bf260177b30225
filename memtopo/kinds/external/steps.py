"""Steps of external memory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import MemoryHandleType
from memtopo.kinds.buffers.steps import BufferStep, DeviceMemoryStep
from memtopo.kinds.layout import Descriptor, Layout, Reservation, current
from memtopo.kinds.step import ErrorHint, HandleReference, Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class DuplicateDescriptor(Step):
    """Duplicate a received descriptor for the driver, which takes ownership of it on import (fact 37).

    A failed import may have closed the duplicate (fact 54), so `undo` closes it only if it still refers to its file.
    """

    label: str
    source: HandleReference

    phase = Phase.IMPORT
    verb = "copy descriptor"
    call = "fcntl"
    undo_call = "close"

    @property
    def provides(self) -> Hashable:
        return ("descriptor", self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("holder", self.source.holder),)

    def do(self, driver: Driver, layout: Layout) -> None:
        received = self.source.fetch_descriptor(layout.handle_source)
        try:
            fd = fcntl.fcntl(received, fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError as error:
            message = f"{self.source.text}: the received descriptor cannot be duplicated: {error.strerror}"
            raise MemtopoError(message, hint="check the descriptor that the producer exports") from error
        layout.descriptors[self.label] = Descriptor(fd, _file(fd))

    def undo(self, driver: Driver, layout: Layout) -> None:
        duplicate = layout.descriptors.pop(self.label, None)
        if duplicate and _is_unchanged(duplicate):
            os.close(duplicate.fd)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.source.text, like=self.source.holder)

    def leak_name(self) -> str:
        return f"descriptor of {self.label}"


@dataclass(frozen=True, slots=True)
class ImportMemory(DeviceMemoryStep):
    """Import the descriptor in the context of the GPU of the memory; the driver takes ownership of it (fact 55).

    The import accepts any size; mapping fails if the size is wrong (fact 53). The driver has no query for it.
    """

    kind: MemoryHandleType
    dedicated: bool

    phase = Phase.IMPORT
    verb = "import memory"
    undo_verb = "destroy"
    call = "cuImportExternalMemory"
    undo_call = "cuDestroyExternalMemory"
    hints: ClassVar = {
        "UNKNOWN": ErrorHint(
            "what was received for {subject} is not a descriptor of external memory, or belongs to another GPU than "
            "{where} (facts 54, 55)",
            "see what the producer sends, and on which GPU it allocated it",
        )
    }
    renews_needs = True

    @property
    def provides(self) -> Hashable:
        return ("external", self.label)

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("descriptor", self.label),)

    def do(self, driver: Driver, layout: Layout) -> None:
        fd = layout.descriptors[self.label].fd
        with current(driver, layout.contexts[self.device]):
            memory = driver.import_external_memory(fd, self.kind, self.size, dedicated=self.dedicated)
            layout.external[self.label] = memory
            del layout.descriptors[self.label]

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Destroy the object, at most once: a second call would end the process (fact 57)."""
        if self.label in layout.external:
            driver.destroy_external_memory(layout.external.pop(self.label))

    def describe(self) -> StepDescription:
        words = [self.kind.name.lower(), *(["dedicated"] if self.dedicated else [])]
        return StepDescription(self.label, f"gpu{self.device}", self.size, note=", ".join(words))

    def leak_name(self) -> str:
        return external_memory_name(self.label)


@dataclass(frozen=True, slots=True)
class MapExternal(BufferStep):
    """Map `size` bytes of external memory at `offset` as a buffer (fact 53)."""

    memory: str
    offset: int

    phase = Phase.MAP
    aspect = "external"
    verb = "map buffer"
    undo_verb = "free"
    call = "cuExternalMemoryGetMappedBuffer"
    undo_call = "cuMemFree"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "{subject} is smaller than the {bytes} that the spec declares (fact 53)",
            "declare the size that the producer allocated it with",
        )
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (("external", self.memory),)

    def do(self, driver: Driver, layout: Layout) -> None:
        with current(driver, layout.contexts[self.device]):
            address = driver.external_memory_get_mapped_buffer(layout.external[self.memory], self.offset, self.size)
            layout.buffers[self.label] = Reservation(address, self.size)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, f"gpu{self.device}", self.size, self.memory)

    def leak_name(self) -> str:
        return f"mapped buffer {self.label}"

    def blocks(self) -> tuple[str, ...]:
        return (external_memory_name(self.memory),)


def external_memory_name(label: str) -> str:
    """Leak name of external memory."""
    return f"external memory {label}"


def _file(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_rdev


def _is_unchanged(descriptor: Descriptor) -> bool:
    try:
        return _file(descriptor.fd) == descriptor.file
    except OSError:
        return False
