"""Held layout of several processes, for its holder: its exports by process, and its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memtopo.driver.handles import Handle
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.run.processes.coordinator import Coordinator
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.offers import Offer


class HeldProcesses:
    """A coordinator whose processes hold a layout. Exports are named by process: `server.weights`, `pe.3.heap`."""

    def __init__(self, coordinator: Coordinator, source: str) -> None:
        self._coordinator, self.source = coordinator, source

    def offers(self) -> Sequence[Offer]:
        return [replace(offer, name=name) for name, (_, offer) in self._exports.items()]

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
        """Plans of all processes of the layout as it is now."""
        joint = self._coordinator.joint
        return tuple(joint.plans.states[joint.state].values())

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

    def switch(self, state: str) -> PlannedSwitch:
        joint = self._coordinator.joint
        touched = joint.plans.touched(joint.plans.transitions(joint.state, state))
        return PlannedSwitch(self._coordinator, state, touched)

    def change(self, source: str, generation: int | None) -> PlannedSwitch:
        del source, generation
        raise ExchangeError("request", "a layout of several processes cannot be changed to another spec")


@dataclass(frozen=True, slots=True)
class PlannedSwitch:
    """Switch of all processes to a state of the layout."""

    coordinator: Coordinator
    state: str
    touched: frozenset[str]

    def make(self, *, full: bool, pinned: frozenset[str] = frozenset()) -> Checks:
        del full, pinned
        self.coordinator.joint.switch(self.state)
        return self.coordinator.recheck()
