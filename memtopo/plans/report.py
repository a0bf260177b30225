"""What a run has to say, as data: plan rows, findings, leaks, and the report of them all. Rendering is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.output.diagram.model import Diagram

Check = Literal["none", "fast", "full"]
"""How thoroughly is looked: not at all, by queries and samples, or at every byte."""


class Finding(NamedTuple):
    """One thing looked at after building: an `aspect` of a `subject`, as it was wanted and as it was seen."""

    aspect: str
    subject: str
    wanted: object
    seen: object
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Like steps of a plan in one line.

    `calls` driver calls of one kind (`verb`), from `first` to `last` subject, `bytes_each` bytes each where they have
    a size; `where` is what they act on or for (a device, a range, the devices granted).
    """

    phase: str
    verb: str
    call: str
    first: str
    last: str
    calls: int
    bytes_each: int
    where: tuple[str, ...]
    path: Path
    note: str = ""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The rows of one process's plan; of `count` neighbours that are alike, `first` to `last`, those of each."""

    first: str
    last: str
    count: int
    rows: tuple[Row, ...]
    memory: dict[str, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan without its steps: rows in order, bytes of physical memory by location, and how many calls it makes.

    `warnings` are the spec's, a line each; `picture` is the layout as it is drawn, where somebody asked for it. Of
    several processes `processes` has the rows, and the plan itself has none.
    """

    name: str
    rows: tuple[Row, ...]
    memory: dict[str, int]
    reserved: int
    calls: int
    teardown_calls: int
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    picture: Diagram | None = None
    processes: tuple[ProcessPlan, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineLine:
    """What a report is about: a machine's name, whether it is simulated, its GPUs and driver."""

    name: str
    simulated: bool
    devices: tuple[str, ...]
    driver: str


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long one phase took: its steps and its seconds."""

    phase: str
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Tally:
    """How many times one aspect was looked at, and how often it was as declared; what was not looked at, and why."""

    aspect: str
    looked_at: int
    as_declared: int
    not_checked: int = 0
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A finding that is not as declared, in words."""

    aspect: str
    subject: str
    wanted: str
    seen: str
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Rate:
    """How long one GPU took to fill or verify (`verb`) so many bytes of `memory`, a GPU's or the host's."""

    verb: str
    device: str
    memory: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checks:
    """Everything that was looked at after building. `differences` holds the first hundred of `different`."""

    tallies: tuple[Tally, ...]
    differences: tuple[Difference, ...] = ()
    different: int = 0
    rates: tuple[Rate, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """The step that failed and the driver's answer; `reason` is the simulator's, `place` is `file:line:col`.

    `cause` is the driver's fact or rule that was most likely broken.
    """

    step: str
    error: str
    reason: str | None = None
    path: Path = ()
    place: str | None = None
    hint: str | None = None
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Leak:
    """What could not be undone: the thing, the driver's answer, and what had to stay because of it."""

    what: str
    error: str
    stays: tuple[str, ...] = ()
    path: Path = ()
    place: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Free bytes of one device: before building (contexts exist), while held, after teardown."""

    device: str
    before: int
    held: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Left:
    """What is left: open things by kind (the ledger) and file descriptors, before, while held and after."""

    ledger_before: dict[str, int]
    ledger_held: dict[str, int]
    ledger_after: dict[str, int]
    fds_before: int
    fds_held: int | None
    fds_after: int
    memory: tuple[DeviceMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where ranges were while the layout stood: `first` at `address`, and each of `count` up to `last` `step` bytes on.

    The numbers of counted ranges go up by one.
    """

    first: str
    last: str
    count: int
    address: int
    step: int


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What became of one process of several; `lost` says how it ended where it could not report."""

    name: str
    pid: int
    outcome: str
    lost: str | None = None
    checks: Checks | None = None
    failure: Failure | None = None
    leaks: tuple[Leak, ...] = ()
    left: Left | None = None
    times: tuple[PhaseTime, ...] = ()
    placed: tuple[Placed, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """One run of `apply`: `outcome` is ok, failed, leaked, different or interrupted; the exit status goes with it.

    `placed` are the ranges of a layout that stood; of several processes each has its own.
    """

    name: str
    spec: str | None
    machine: MachineLine
    outcome: str
    exit_code: int
    plan: PlanSummary
    times: tuple[PhaseTime, ...] = ()
    checks: Checks | None = None
    failure: Failure | None = None
    leaks: tuple[Leak, ...] = ()
    left: Left | None = None
    notes: tuple[str, ...] = ()
    processes: tuple[ProcessReport, ...] = ()
    check: Check = "fast"
    placed: tuple[Placed, ...] = ()


class Progress:
    """Hooks that a long run calls; every one of them is empty here."""

    def phase(self, name: str, steps: int) -> None:
        """A phase begins that has `steps` steps."""

    def volume(self, name: str, size: int) -> None:
        """A phase begins that goes through `size` bytes, which its steps are."""

    def advance(self, steps: int) -> None:
        """`steps` more steps of the phase are done."""

    def end(self) -> None:
        """The phases are over, however they ended."""
