"""Held layout of several processes, for its holder: its exports by process, and its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memtopo.driver.handles import Handle
from memtopo.driver.types import gpu
from memtopo.geometry import Geometry
from memtopo.planner import Plan
from memtopo.plans.report import Check, Checks
from memtopo.run.held import require_changeable
from memtopo.run.processes.coordinator import Coordinator
from memtopo.run.processes.joint_change import checks_of
from memtopo.run.processes.joint_plans import JointPlans
from memtopo.run.processes.messages import PlanChange
from memtopo.run.processes.reports import merged_checks
from memtopo.session.request import Revise, Revision
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.offers import Offer
from memtopo.sharing.sources import parsed_source


class HeldProcesses:
    """A coordinator whose processes hold a layout. Exports are named by process: `server.weights`, `pe.3.heap`."""

    def __init__(self, coordinator: Coordinator, source: str, revise: Revise) -> None:
        self._coordinator, self.source, self._revise = coordinator, source, revise

    def offers(self) -> Sequence[Offer]:
        exports = self._exports.items()
        return [replace(offer, name=name, entry=f"{label}.{offer.entry}") for name, (label, offer) in exports]

    def handle(self, export: str, index: int) -> Handle:
        label, offer = self._exports[export]
        (handle,) = self._coordinator.request_handles(label, offer.name, index, 1)
        return handle

    def check(self) -> Checks:
        return self._coordinator.recheck()

    @property
    def _exports(self) -> dict[str, tuple[str, Offer]]:
        workers = self._coordinator.workers.items()
        return {f"{label}.{offer.name}": (label, offer) for label, worker in workers for offer in worker.offers}

    @property
    def plans(self) -> Sequence[Plan]:
        """Plans of all processes of the layout that run here as it is now."""
        joint, here = self._coordinator.joint, self._coordinator.ensemble.processes
        return tuple(plan for label, plan in joint.plans.states[joint.state].items() if label in here)

    @property
    def contexts(self) -> Sequence[str]:
        """GPU of each context that a process keeps."""
        processes = self._coordinator.ensemble.processes.values()
        return sorted(str(gpu(device)) for each in processes for device in each.kept_contexts)

    @property
    def spec(self) -> str | None:
        return self._coordinator.ensemble.request.spec

    @property
    def generation(self) -> int:
        return self._coordinator.joint.generation

    @property
    def state(self) -> str:
        return self._coordinator.joint.state

    @property
    def states(self) -> Sequence[str]:
        return tuple(self._coordinator.joint.plans.states)

    def switch(self, state: str) -> JointSwitch:
        joint = self._coordinator.joint
        touched = joint.plans.touched(joint.plans.transitions(joint.state, state), joint.plans)
        return JointSwitch(self._coordinator, touched, state)

    def renewal(self, exports: frozenset[str]) -> JointSwitch:
        raise ExchangeError("unknown", f"exports of several processes are not committed: {', '.join(sorted(exports))}")

    def change(self, source: str, generation: int | None) -> JointRevision:
        coordinator, before = self._coordinator, self._coordinator.ensemble.request
        require_changeable(self, before.plan.name, generation)
        revision = self._revise(source, before)
        _require_same_view(before.geometry, revision.request.geometry)
        found = parsed_source(source)
        command = PlanChange(revision.request.spec or "<spec>", found.spec, before.check, settings=found.settings)
        coordinator.joint.plan(command)
        plans, after = coordinator.joint.plans, JointPlans(revision.request.geometry, revision.request.plan)
        touched = plans.touched(plans.transitions_to(after), after)
        return JointRevision(coordinator, touched, self, revision, command)


@dataclass(frozen=True, slots=True)
class _JointChange:
    """Change of all processes, and the exports that it touches."""

    coordinator: Coordinator
    touched: frozenset[str]

    @property
    def lost(self) -> frozenset[str]:
        return self.touched


@dataclass(frozen=True, slots=True)
class JointSwitch(_JointChange):
    """Switch of all processes to a state of the layout."""

    state: str

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        with self.coordinator.announced("change"):
            checks = self.coordinator.joint.switch(self.state, sorted(in_use), check="full" if full else "fast")
        return merged_checks(checks)


@dataclass(frozen=True, slots=True)
class JointRevision(_JointChange):
    """Change of all processes to another spec."""

    held: HeldProcesses
    revision: Revision
    command: PlanChange

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        check: Check = "full" if full else "fast"
        command = replace(self.command, check=check, in_use=tuple(sorted(in_use)))
        with self.coordinator.announced("change"):
            results = self.coordinator.change(replace(self.revision.request, check=check), command)
        self.held.source = self.revision.source
        return merged_checks(checks_of(results))


def _require_same_view(before: Geometry, after: Geometry) -> None:
    """Raise `ExchangeError` for a process that is to see other GPUs than it does since its start."""
    for label, geometry in before.processes.items():
        if geometry.visible != after.processes[label].visible:
            message = f"process {label!r} sees other GPUs in the spec, and a change keeps its 'visible'"
            raise ExchangeError("invalid", message, hint="release the layout, and apply the spec")
