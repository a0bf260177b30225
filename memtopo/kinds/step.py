"""Steps: state-changing calls, each with its undo, its check, and its description in a plan."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.geometry.groups import Group
from memtopo.kinds.layout import HandleSource, Layout


class Phase(StrEnum):
    """Phases of building, in order; teardown goes through them in reverse."""

    OPEN = "open"
    RESERVE = "reserve"
    CREATE = "create"
    EXPORT = "export"
    IMPORT = "import"
    MAP = "map"
    GRANT = "grant"
    SETTLE = "settle"


class StepDescription(NamedTuple):
    """A step as a plan shows it. Neighbours with equal `like`, `bytes_each` and `note` are folded into one row."""

    subject: str
    where: str
    bytes_each: int = 0
    like: Hashable = None
    note: str = ""


class Finding(NamedTuple):
    """One comparison after building: an `aspect` of a `subject`, with the expected and the observed value."""

    aspect: str
    subject: str
    expected: object
    observed: object
    path: Path = ()


class HandleRequest(NamedTuple):
    """One handle to request: its holder, the export and the number in it, and the export as the spec writes it."""

    holder: str
    export: str
    number: int
    text: str

    @classmethod
    def of(cls, group: Group, index: int) -> HandleRequest:
        """Request for the handle of one imported thing."""
        assert group.origin
        holder, number = group.origin.of(index)
        return cls(holder, group.origin.export, number, group.origin.text(holder))

    def fetch(self, source: HandleSource) -> int | bytes:
        """Request the handle. Raises `MemtopoError`."""
        return source.take(self.holder, self.export, self.number)


@dataclass(frozen=True, slots=True)
class Step:
    """One state-changing call. `path` is the spec's entry that requires it.

    `do` raises `DriverError` and has then changed nothing. `undo` runs after success and failure alike, and does
    nothing if `do` did not finish. `check` only queries.
    """

    path: Path

    phase: ClassVar[Phase]
    verb: ClassVar[str]
    call: ClassVar[str]
    undo_call: ClassVar[str] = ""
    """Driver call that undoes it; empty if the undo of another step ends it."""

    def do(self, driver: Driver, layout: Layout) -> None:
        """Make the call, and note its result in the layout."""
        raise NotImplementedError

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Give back what `do` created."""
        del driver, layout

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare what the driver reports with what the spec declares."""
        del driver, layout
        yield from ()

    def describe(self) -> StepDescription:
        """Describe the step for a plan."""
        raise NotImplementedError

    def leak_name(self) -> str | None:
        """Name of what stays if `undo` fails; None if nothing does."""
        return None

    def blocks(self) -> tuple[str, ...]:
        """Leak names of the steps that cannot be undone while this one is done."""
        return ()

    def blocked_by_wait(self, device: int) -> tuple[str, ...]:
        """Leak names of what cannot be given back while a stream of a GPU waits for a semaphore (fact 58)."""
        del device
        return ()


def range_name(label: str) -> str:
    """Leak name of a reserved range."""
    return f"range {label}"


def context_name(device: int) -> str:
    """Leak name of a GPU's context."""
    return f"context of gpu{device}"


def kernels_name(device: int) -> str:
    """Leak name of a GPU's kernels."""
    return f"kernels of gpu{device}"
