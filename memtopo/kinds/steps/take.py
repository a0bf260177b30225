"""A descriptor of what another API made, as one of this process's own."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from memtopo.common.errors import InternalError, MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Descriptor, Layout
from memtopo.kinds.steps.base import HandleRequest, Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class DuplicateDescriptor(Step):
    """Duplicates what the exchange gives, so that the driver can have one for itself and its owner keeps his (fact 37).

    A refused import may have closed it already (fact 54), so it is closed only where it still is what it was.
    """

    label: str
    ask: HandleRequest

    phase = Phase.IMPORT
    verb = "copy descriptor"
    call = "fcntl"
    undo_call = "close"

    def do(self, driver: Driver, layout: Layout) -> None:
        del driver
        given = self.ask.taken(layout.handle_source)
        if not isinstance(given, int):
            raise InternalError(f"{self.ask.text} came as bytes")
        try:
            fd = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError as error:
            told = f"{self.ask.text} came as a descriptor that cannot be copied: {error.strerror}"
            raise MemtopoError(told, hint="see what the producer hands over") from error
        layout.descriptors[self.label] = Descriptor(fd, _file(fd))

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver
        taken = layout.descriptors.pop(self.label, None)
        if taken and _is(taken):
            os.close(taken.fd)

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.ask.text, like=self.ask.holder)

    def leak_name(self) -> str:
        return f"descriptor of {self.label}"


def _file(fd: int) -> tuple[int, int, int]:
    seen = os.fstat(fd)
    return seen.st_dev, seen.st_ino, seen.st_rdev


def _is(taken: Descriptor) -> bool:
    try:
        return _file(taken.fd) == taken.file
    except OSError:
        return False
