"""Plans and reports as data: rows of a plan, findings, leaks, and the report of a run. `output` renders them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, field

from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram
from memtopo.language import Document
from memtopo.language.limits import PARAMETERS
from memtopo.machine import Choice, MachineLine

Check = Literal["none", "fast", "full"]
"""Thoroughness of the checks: none, queries and samples, or every byte."""


class Row(Struct, frozen=True):
    """Similar steps of a plan in one row.

    `calls` driver calls of one kind (`verb`), from `first` to `last` subject, with `bytes_each` bytes each if they have
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


class ProcessPlan(Struct, frozen=True):
    """Rows of the plan of one process, or of each of `count` equal processes, `first` to `last`.

    They are on one `node`, if the layout has nodes; GPUs without a node are those of this one.
    """

    first: str
    last: str
    count: int
    rows: tuple[Row, ...]
    memory: dict[str, int]
    notes: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    node: str | None = None


class PlanSummary(Struct, frozen=True):
    """Plan without its steps: rows in order, bytes of physical memory by location, and number of driver calls.

    `warnings` are those of the spec, a line each; `picture` is the drawing of the layout, if one was requested. In a
    multi-process plan `processes` has the rows, and the plan itself has none. `states` has the bytes by location in
    each state of the layout, if it has states and they were requested. `choices` are the alternatives that fields
    of the spec take on the machine.
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
    states: dict[str, dict[str, int]] = {}
    params: dict[str, str] = {}
    """Parameters of the spec with the values that are in effect."""
    choices: tuple[Choice, ...] = ()


class MemoryChange(Struct, frozen=True):
    """Bytes of physical memory at a location before and after a change, and at most during it."""

    before: int
    after: int
    peak: int


class ProcessDifference(Struct, frozen=True):
    """Difference of the plans of one process, or of each of `count` equal processes, `first` to `last`, on a `node`."""

    first: str
    last: str
    count: int
    undo: tuple[Row, ...]
    do: tuple[Row, ...]
    kept: int
    lost: tuple[str, ...]
    node: str | None = None

    @property
    def empty(self) -> bool:
        """True if nothing differs."""
        return not self.undo and not self.do


class EntryChanges(Struct, frozen=True):
    """Entries that are added, removed and changed, by section and name: `chunks.page`, `server.chunks.page`.

    The name of the layout is one, too: `layout name`, which cannot be the name of a process.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @classmethod
    def of(cls, before: Document, after: Document) -> EntryChanges:
        """Compare the values of two documents, in which parameters are replaced."""
        old, new = dict(_entries(before.root)), dict(_entries(after.root))
        return cls(
            added=tuple(name for name in new if name not in old),
            removed=tuple(name for name in old if name not in new),
            changed=tuple(name for name, value in new.items() if old.get(name, value) != value),
        )


def _entries(root: object, process: str = "") -> Iterator[tuple[str, object]]:
    """Yield the entries of all sections; the keys of a process that are no section are one, with its name."""
    sections = root if isinstance(root, dict) else {}
    if process:
        yield process, {key: value for key, value in sections.items() if not isinstance(value, dict)}
    else:
        yield "layout name", sections.get("name")
    for section, entries in sections.items():
        if isinstance(entries, dict) and section != PARAMETERS:
            for name, value in entries.items():
                if section == "processes":
                    yield from _entries(value, name)
                else:
                    yield ".".join(filter(None, (process, section, name))), value


class ExportChange(Struct, frozen=True):
    """Change of an export, which importers rely on: terms that differ, before and after; null where there is no export.

    `released` if some of its memory is released or replaced: importers let go of it before that.
    """

    name: str
    terms: dict[str, tuple[str, str | None]]
    released: bool


class PlanDifference(Struct, frozen=True):
    """Difference of two plans: rows of what is undone and of what is done, in order, and the number of `kept` steps.

    `lost` are the labels of memory whose bytes are lost, although memory of the same label exists before and after;
    `memory` has the bytes by location. The pictures are those of the layouts before and after. In a difference of
    multi-process plans `processes` has the rows and the lost memory; `kept` and `memory` are those of all processes.
    `params` has the value before and after of each parameter that differs; null where a spec does not declare it.
    `emptied` are the exports that a writer has to commit again; `entries` are those of the specs that differ. `moved`
    are ranges and other memory with addresses of their own that are freed and reserved again, mostly at others;
    `exports` are those that change.
    """

    before: str
    after: str
    undo: tuple[Row, ...]
    do: tuple[Row, ...]
    kept: int
    lost: tuple[str, ...]
    memory: dict[str, MemoryChange]
    picture_before: Diagram | None = None
    picture_after: Diagram | None = None
    processes: tuple[ProcessDifference, ...] = ()
    params: dict[str, tuple[str | None, str | None]] = {}
    emptied: tuple[str, ...] = ()
    entries: EntryChanges = field(default_factory=EntryChanges)
    moved: tuple[str, ...] = ()
    exports: tuple[ExportChange, ...] = ()

    @property
    def empty(self) -> bool:
        """True if nothing differs: no step, no parameter, and no entry, such as a state, which may be no step."""
        return self.steps_equal and not self.params and self.entries == EntryChanges()

    @property
    def steps_equal(self) -> bool:
        """True if no step differs."""
        return not self.undo and not self.do and all(each.empty for each in self.processes)


class PhaseTime(Struct, frozen=True):
    """Steps and seconds of one phase.

    It `began` and `ended` so many seconds after the run began: of a layout of several processes all its processes, of
    one of several nodes those of its node. A phase in several parts took less than the time in between.
    """

    phase: str
    steps: int
    seconds: float
    began: float = 0.0
    ended: float = 0.0

    def with_part(self, other: PhaseTime) -> PhaseTime:
        """Return it with a later part of the same phase."""
        steps, seconds = self.steps + other.steps, self.seconds + other.seconds
        return PhaseTime(self.phase, steps, seconds, self.began, other.ended)


class Tally(Struct, frozen=True):
    """Number of observations of one aspect, how many were as declared, and what was not checked, with the reason."""

    aspect: str
    looked_at: int
    as_declared: int
    not_checked: int = 0
    why_not: str | None = None


class Difference(Struct, frozen=True):
    """Finding that is not as declared, as text; `place` is `file:line:col` of its entry."""

    aspect: str
    subject: str
    wanted: str
    seen: str
    path: Path = ()
    place: str | None = None
    hint: str | None = None


class Rate(Struct, frozen=True):
    """Seconds that one GPU took to fill or verify (`verb`) bytes of `memory`, of a GPU or the host."""

    verb: str
    device: str
    memory: str
    bytes: int
    seconds: float


class Checks(Struct, frozen=True):
    """Result of all checks after building. `differences` holds the first hundred of `different`."""

    tallies: tuple[Tally, ...]
    differences: tuple[Difference, ...]
    different: int
    rates: tuple[Rate, ...] = ()


class Failure(Struct, frozen=True):
    """Step that failed and the driver's error; `reason` is the simulator's explanation, `place` is `file:line:col`.

    `cause` is the driver fact or rule that was most likely broken.
    """

    step: str
    error: str
    reason: str | None = None
    path: Path = ()
    place: str | None = None
    hint: str | None = None
    cause: str | None = None


class Leak(Struct, frozen=True):
    """Resource that could not be released, with the driver's error and what had to stay because of it."""

    what: str
    error: str
    stays: tuple[str, ...] = ()
    path: Path = ()
    place: str | None = None


class DeviceMemory(Struct, frozen=True):
    """Free bytes of one device: before building (contexts exist), while held, after teardown."""

    device: str
    before: int
    held: int | None
    after: int


class Left(Struct, frozen=True):
    """Open resources by kind (the ledger) and file descriptors: before building, while held, and after teardown."""

    ledger_before: dict[str, int]
    ledger_held: dict[str, int]
    ledger_after: dict[str, int]
    fds_before: int
    fds_held: int | None
    fds_after: int
    memory: tuple[DeviceMemory, ...] = ()


class Placed(Struct, frozen=True):
    """Addresses of ranges: `first` at `address`, and each of `count` up to `last` `step` bytes further.

    The numbers of counted ranges increase by one.
    """

    first: str
    last: str
    count: int
    address: int
    step: int


class ProcessReport(Struct, frozen=True):
    """Result of one process of a multi-process layout; `lost` says how it ended if it could not report."""

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


class NodeReport(Struct, frozen=True):
    """Result of one node of a layout of several: its processes, the bytes to create by location, checks and rest.

    `outcome` is ok, taken down, failed, different, leaked; ended, if its agent died and no process of it is left; or
    lost, if that is not known. `lost` says how the agent was lost, or why it could not report.
    """

    name: str
    host: str
    outcome: str
    lost: str | None = None
    processes: tuple[str, ...] = ()
    memory: dict[str, int] = {}
    checks: Checks | None = None
    left: Left | None = None


class Report(Struct, frozen=True):
    """Report of one run of `apply`: `outcome` is ok, failed, leaked, different or interrupted.

    `placed` has the addresses of the ranges, if the layout was complete; in a multi-process report each process has its
    own. `nodes` has the nodes of a layout of several. It `started` at a time in UTC, as `2026-01-31T12:00:00Z`.
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
    nodes: tuple[NodeReport, ...] = ()
    started: str | None = None
