"""What every step is: something done by one call, undone by one call, looked at, and readable in a plan."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HOST, Location, LocationKind
from memtopo.kinds.layout import HandleSource, Layout
from memtopo.plans.report import Finding


class Phase(StrEnum):
    """When a step is done; teardown goes through the phases backwards."""

    OPEN = "open"
    RESERVE = "reserve"
    CREATE = "create"
    EXPORT = "export"
    IMPORT = "import"
    MAP = "map"
    GRANT = "grant"
    SETTLE = "settle"


class StepDescription(NamedTuple):
    """How a step reads in a plan. Neighbours with equal `like`, `bytes_each` and `note` are shown as one row."""

    subject: str
    where: str
    bytes_each: int = 0
    like: Hashable = None
    note: str = ""


class HandleRequest(NamedTuple):
    """One handle to ask for: whose, of which of its exports, which of that export's, and how the spec writes it."""

    holder: str
    export: str
    number: int
    text: str

    def taken(self, handle_source: HandleSource) -> int | bytes:
        """The handle. Raises `MemtopoError`."""
        return handle_source.take(self.holder, self.export, self.number)


@dataclass(frozen=True, slots=True)
class Step:
    """One state-changing call. `path` is the spec's entry that asked for it.

    `do` raises `DriverError` and has then changed nothing. `undo` runs after success and failure alike, and does
    nothing where `do` was not finished. `check` only looks.
    """

    path: Path

    phase: ClassVar[Phase]
    verb: ClassVar[str]
    call: ClassVar[str]
    undo_call: ClassVar[str] = ""
    """The driver's name for the call that undoes it; empty where the end of another step ends it."""

    def do(self, driver: Driver, layout: Layout) -> None:
        """Make the one call, and note in the layout what came of it."""
        raise NotImplementedError

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Take back what `do` made."""
        raise NotImplementedError

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """What the driver says of it, wanted and seen."""
        del driver, layout
        yield from ()

    def describe(self) -> StepDescription:
        """How it reads in a plan."""
        raise NotImplementedError

    def leak_name(self) -> str | None:
        """What stays if `undo` fails; None where nothing does."""
        return None

    def blocks(self) -> tuple[str, ...]:
        """The things that cannot be undone as long as this one stands."""
        return ()


def range_name(label: str) -> str:
    """How a reserved range is called among what stays, by itself and by the mappings that stand in it."""
    return f"range {label}"


def external_memory_name(label: str) -> str:
    """How external memory is called among what stays, by itself and by what is mapped of it."""
    return f"external memory {label}"


def context_name(device: int) -> str:
    """How a GPU's context is called among what stays, by itself and by what a stream that waits holds up."""
    return f"context of gpu{device}"


def kernels_name(device: int) -> str:
    """How a GPU's kernels are called, likewise."""
    return f"kernels of gpu{device}"


def place(ordinal: int) -> str:
    """A device that a range attribute answers, in the words of a spec."""
    return "host" if ordinal == HOST else f"gpu{ordinal}"


def spoken(location: Location) -> str:
    """A device as a range attribute can tell it: of the host's NUMA nodes it knows none (fact 60)."""
    return str(location) if location.kind is LocationKind.GPU else "host"
