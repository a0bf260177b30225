"""The run of a worker: planned from the same text and the same machine record as in all other workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from memtopo import language, planner
from memtopo.common.errors import InternalError, Stopped
from memtopo.driver.handles import Handle, close_handles
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.trace import with_trace
from memtopo.drivers import target
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.language import Document
from memtopo.machine import Cluster, Machine, parse
from memtopo.machine.cluster import MachineLine
from memtopo.planner import Plan
from memtopo.plans.progress import NO_PROCESSES, Progress
from memtopo.rules.validation import validate
from memtopo.run.base_run import built_plan
from memtopo.run.layout_plans import LayoutPlans
from memtopo.run.messages import PlanChange, Start
from memtopo.run.process_run import ProcessRun
from memtopo.run.request import RunRequest
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.imports import CommitWait, HolderHandles

WrapDriver = Callable[[str, KernelDriver], KernelDriver]
"""Wrapper of a worker's driver, by the label of its process."""

RequestHandles = Callable[[str, str, int, int], Sequence[Handle]]
"""Handles of a holder's export, from an index on, in order. Raises `MemtopoError`."""


@dataclass(frozen=True, slots=True)
class WorkerHooks:
    """Functions of the worker that its run calls.

    `alive` reports a number of steps as done, and `begin` that a phase of so many steps begins; `stopped` returns the
    number of a signal that requests a stop, or 0.
    """

    wrap: WrapDriver
    request: RequestHandles
    alive: Callable[[int], None]
    begin: Callable[[int], None]
    stopped: Callable[[], int]

    def advance(self) -> None:
        """Report that this process lives, without a step. Raises `Stopped`."""
        if self.stopped():
            raise Stopped
        self.alive(0)


def planned(start: Start, spec: Start | PlanChange) -> tuple[RunRequest, LayoutPlans]:
    """Plan all processes of a spec, and return the request of this one, too. Raises `MemtopoError`."""
    machine = parse(start.machine.encode(), start.machine_name)
    nodes = {node: parse(text.encode(), node) for node, text in start.cluster.items()}
    machines = Cluster(nodes) if nodes else machine
    document = language.read_text(spec.text.encode(), spec.spec, spec.settings)
    geometry = validate(document, machines).geometry
    if geometry is None:
        raise InternalError("a spec is valid in the conductor and invalid in a worker")
    plan = planner.plan(geometry, machines)
    request = replace(_request(start, document, geometry, plan.processes[start.process], machine), check=spec.check)
    return request, LayoutPlans(geometry, plan).built_with(start.process, built_plan(request))


def prepare(start: Start, hooks: WorkerHooks) -> ProcessRun:
    """Plan all processes of the layout, and open the driver of this one. Raises `MemtopoError`."""
    request, plans = planned(start, start)
    assert request.machine_facts
    driver = target.open_in_worker(request.machine_facts, simulated=start.simulated, visible=start.visible)
    commits = CommitWait(start.timeout, hooks.advance)
    external = HolderHandles(request.geometry, start.gpus, start.sockets, start.allow_uids, commits)
    wrapped, trace = with_trace(hooks.wrap(start.process, driver), start.trace, request.about_trace)
    return ProcessRun(
        request,
        Ledger(wrapped),
        progress=_WorkerProgress(hooks),
        stop=hooks.stopped,
        handle_source=SiblingHandles(request.geometry, hooks.request, external),
        origin=start.origin,
        context=trace.context if trace else None,  # the trace ends with the process
        plans=plans,
    )


def _request(start: Start, document: Document, geometry: Geometry, plan: Plan, machine: Machine) -> RunRequest:
    return RunRequest(
        plan=plan,
        geometry=geometry.processes[start.process],
        machine=MachineLine(start.machine_name, start.simulated, (), machine.driver.name),
        layout=geometry.name,
        spec=document.name,
        position_of=document.position,
        process=start.process,
        siblings=geometry.processes,
        node=geometry.labels_beside(start.process),
        machine_facts=machine,
        seed=start.seed,
        timeout=start.timeout,
    )


class _WorkerProgress(Progress):
    """Progress reported to the conductor."""

    def __init__(self, hooks: WorkerHooks) -> None:
        self._hooks = hooks

    def phase(self, name: str, steps: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
        del name, processes
        self._hooks.begin(steps)

    def extend(self, steps: int, process: str = "") -> None:
        del process
        self._hooks.begin(steps)

    def advance(self, steps: int, process: str = "") -> None:
        del process
        self._hooks.alive(steps)


class SiblingHandles:
    """Handles that a process imports from its siblings, in batches; handles of other holders come from `external`."""

    def __init__(self, geometry: Geometry, request: RequestHandles, external: HandleSource) -> None:
        self._request, self._external = request, external
        self._counts = _sibling_counts(geometry)
        self._batch: dict[tuple[str, str, int], Handle] = {}

    def expect(self, geometry: Geometry) -> None:
        self._counts = _sibling_counts(geometry)
        self._external.expect(geometry)

    def attach(self, holder: str) -> int:
        return self._external.attach(holder)

    def detach(self, holder: str) -> None:
        self._external.detach(holder)

    def take(self, holder: str, export: str, index: int) -> Handle:
        if (holder, export) not in self._counts:
            return self._external.take(holder, export, index)
        if (holder, export, index) not in self._batch:
            self.settle()
            self._fetch(holder, export, index)
        return self._batch[holder, export, index]

    def gone(self, holder: str) -> bool:
        return self._external.gone(holder)

    def settle(self) -> None:
        self._external.settle()
        close_handles(self._batch.values())
        self._batch.clear()

    def _fetch(self, holder: str, export: str, first: int) -> None:
        count = min(IN_FLIGHT, self._counts[holder, export] - first)
        handles = self._request(holder, export, first, count)
        if not 1 <= len(handles) <= count:
            close_handles(handles)
            raise InternalError(f"{holder} gave {len(handles)} of {count} handles of {export}")
        self._batch = {(holder, export, first + index): handle for index, handle in enumerate(handles)}


def _sibling_counts(geometry: Geometry) -> dict[tuple[str, str], int]:
    """Number of handles of each export that a process imports from its siblings, by process and export."""
    return {
        (holder, group.origin.export): group.origin.each
        for group in geometry.every
        if group.origin and group.origin.siblings
        for holder in group.origin.holders
    }
