"""Request for a run: what to build, how to check it, and how to report it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct, field
from msgspec.structs import replace

from memtopo.diagnostics.model import Path
from memtopo.geometry import Geometry
from memtopo.geometry.diagram import Diagram
from memtopo.machine import Machine, MachineLine
from memtopo.planner import Plan, memory_by_state
from memtopo.plans.report import Check, PlanSummary


class RunRequest(Struct, frozen=True):
    """Plan to apply, with the geometry that it was made from.

    `spec` is the name of the file, `position_of` returns the `file:line:col` of a path in it; these, `machine`,
    `picture`, `warnings` and `params`, the values of the spec's parameters, go into the report.

    For one process of a multi-process layout, `process` is its label, `layout` the name of the layout, and `siblings`
    has the geometry of every process, its own included; `node` are the labels of those on the same node, empty for a
    layout of one host.

    `check` is the thoroughness of the checks. `machine_facts` is the machine on which replicas are built for a full
    check; None builds no replicas. `seed` determines the bytes that are written, and is the same in all processes.
    `exclusive` says that no other code in this process makes driver calls or opens files, so that every difference is a
    leak of this run. `timeout` is the number of seconds that an external producer has to signal a semaphore.
    """

    plan: Plan
    geometry: Geometry
    machine: MachineLine
    spec: str | None = None
    position_of: Callable[[Path], str | None] = lambda _path: None
    picture: Diagram | None = None
    warnings: tuple[str, ...] = ()
    params: Mapping[str, str] = {}
    process: str = ""
    trace: str | None = None
    """File for the trace of the driver calls, or the folder for those of all processes."""
    layout: str = ""
    siblings: Mapping[str, Geometry] | None = None
    node: Collection[str] = ()
    machine_facts: Machine | None = None
    check: Check = "fast"
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(8)))
    exclusive: bool = True
    timeout: float = 60.0
    source: str | None = None
    """Folder whose bytes come back before the layout is served."""
    digest: str = ""
    """Fingerprint of the spec."""
    rehearse: bool = False
    """True to go through the states of the layout after it is verified."""
    started: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    """Time of the request."""

    @property
    def layout_name(self) -> str:
        """Name of the layout, also in one of its processes."""
        return self.layout or self.plan.name

    @property
    def processes(self) -> Mapping[str, Geometry]:
        """Geometry of every process of the layout by its label; the label of a single process is empty."""
        return self.siblings or {self.process: self.geometry}

    @property
    def processes_of_node(self) -> Mapping[str, Geometry]:
        """Geometry of every process that has the same GPUs, by its label."""
        return {label: each for label, each in self.processes.items() if not self.node or label in self.node}

    @property
    def about_trace(self) -> dict[str, object]:
        """First line of a trace of the run: its layout, its process if there are several, and its machine."""
        machine = self.machine
        about = {"layout": self.layout_name, "process": self.process or "", "machine": machine.name}
        return {**about, "simulated": machine.simulated, "driver": machine.driver}

    def of_process(self, process: str) -> RunRequest:
        """Return the request of one process of a multi-process layout, by its label."""
        every = self.geometry
        return replace(
            self, plan=self.plan.processes[process], geometry=every.processes[process], layout=every.name,
            process=process, siblings=every.processes, node=every.labels_beside(process),
        )  # fmt: skip

    def summary(self) -> PlanSummary:
        """Plan for the report; of a rehearsed layout with the memory of each state."""
        states = memory_by_state(self.plan, self.geometry) if self.rehearse else None
        return self.plan.summary(self.picture, self.warnings, states, self.params)

    def notes(self) -> Iterator[str]:
        """Notes on the check for the report, independent of its result."""
        if self.check == "full" and self.machine.simulated:
            yield "simulated: the first and last 4 KiB of each granule stand for every byte"


class Holding(Struct, frozen=True):
    """Terms of a held layout: socket, seconds until its deadline, grace for importers over ipc, and trusted users."""

    socket: str | None = None
    lasting: float | None = None
    grace: float = 5.0
    allow_uids: Sequence[int] = ()


class HoldResult(Struct, frozen=True):
    """Result of holding a layout: notes for the report, and the number of descriptors that stay open on purpose."""

    notes: Sequence[str] = ()
    descriptors: int = 0


class Revision(Struct, frozen=True):
    """Spec that a held layout is to have: the request to apply it, and the source that clients can draw it from."""

    request: RunRequest
    source: str


Revise = Callable[[str, RunRequest], Revision]
"""Validates a source, to which the layout of a request is to be changed. Raises `MemtopoError`."""
