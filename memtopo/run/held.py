"""Held layout of one process, for its holder: its exports, and its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memtopo.driver.handles import Handle
from memtopo.executor import StepFailed
from memtopo.kinds.exports import ExportGroup
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.plans.transition import transition
from memtopo.run.apply import Run
from memtopo.run.change import RollbackFailed
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.exports import LayoutExports
from memtopo.sharing.offers import ChangeFailed, Offer


class HeldLayout:
    """A run that is held. `failure` is set when a change has left a layout that can only be taken down."""

    def __init__(self, run: Run, source: str) -> None:
        self._run, self.source = run, source
        self.failure: RollbackFailed | None = None

    def offers(self) -> Sequence[Offer]:
        return self._exports.offers()

    def handle(self, export: str, index: int) -> Handle:
        return self._exports.handle(export, index)

    def check(self) -> Checks:
        return self._run.recheck()

    @property
    def spec(self) -> str | None:
        return self._run.request.spec

    @property
    def generation(self) -> int:
        return self._run.execution.generation

    @property
    def state(self) -> str:
        return self._run.state

    @property
    def states(self) -> Sequence[str]:
        return tuple(self._run.states)

    def switch(self, state: str) -> PlannedSwitch:
        return PlannedSwitch(self, self._run, state)

    def change(self, source: str, generation: int | None) -> PlannedSwitch:
        del source, generation
        raise ExchangeError("request", "this layout cannot be changed to another spec")

    def touched(self, plan: Plan) -> frozenset[str]:
        """Return the names of the exports whose objects a change to a plan releases or replaces."""
        undone = {step.provides for step in transition(self._run.execution.plan.steps, plan.steps).undo}
        exports = self._run.request.geometry.of(ExportGroup)
        return frozenset(name for name, group in exports.items() if not undone.isdisjoint(group.resources))

    @property
    def _exports(self) -> LayoutExports:
        run = self._run
        return LayoutExports(run.request.geometry, run.execution.layout, run.execution.driver, run.recheck)


@dataclass(frozen=True, slots=True)
class PlannedSwitch:
    """Switch of a held layout to one of its states."""

    held: HeldLayout
    run: Run
    state: str

    @property
    def touched(self) -> frozenset[str]:
        return self.held.touched(self.run.states[self.state])

    def make(self, *, full: bool) -> Checks:
        del full
        run = self.run
        try:
            return run.switch(self.state)
        except RollbackFailed as failed:
            self.held.failure = failed
            raise ChangeFailed(f"{failed}; the layout is taken down", broken=True) from failed
        except StepFailed as failed:
            raise ChangeFailed(f"{failed}; the layout is {run.state}, as before", broken=False) from failed
