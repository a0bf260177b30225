"""Held layout of one process, for its holder: its exports, and its changes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from memtopo.common.errors import Stopped
from memtopo.diagnostics.messages import not_awake
from memtopo.driver.handles import Handle
from memtopo.driver.types import gpu
from memtopo.executor import StepFailed
from memtopo.geometry.model import Geometry
from memtopo.kinds.exports.groups import exported_resources, touched_exports
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.plans.transition import Transition, transition
from memtopo.run.apply import Run
from memtopo.run.transition import RollbackFailed
from memtopo.session.request import Revise, Revision
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.exports import LayoutExports
from memtopo.sharing.offers import ChangeableLayout, ChangeFailed, Offer


def require_changeable(layout: ChangeableLayout, name: str, generation: int | None) -> None:
    """Raise `ExchangeError` unless a layout is awake, and of the generation for which a change was planned, if any."""
    if generation not in (None, layout.generation):
        message = f"the layout is of generation {layout.generation}, and the change was planned for {generation}"
        raise ExchangeError("stale", message, hint="plan it again")
    if layout.state != AWAKE:
        message, hint = not_awake(name, layout.state)
        raise ExchangeError("state", message, hint=hint)


class HeldLayout:
    """A run that is held. `failure` is set when a change has left a layout that can only be taken down."""

    def __init__(self, run: Run, source: str, revise: Revise) -> None:
        self._run, self.source, self._revise = run, source, revise
        self.failure: RollbackFailed | None = None

    def offers(self) -> Sequence[Offer]:
        return self._exports.offers()

    def handle(self, export: str, index: int) -> Handle:
        return self._exports.handle(export, index)

    def check(self) -> Checks:
        with self._run.execution.announced("check"):
            return self._run.recheck()

    @property
    def plans(self) -> Sequence[Plan]:
        """Plan of the layout as it is now."""
        return (self._run.execution.plan,)

    @property
    def contexts(self) -> Sequence[str]:
        """GPUs on which this process keeps a context."""
        return [str(gpu(device)) for device in sorted(self._run.execution.layout.contexts)]

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
        run = self._run
        return PlannedSwitch(self, run, self._touched(run.transition_to(state), run.request.geometry), state)

    def change(self, source: str, generation: int | None) -> PlannedRevision:
        run = self._run
        require_changeable(self, run.request.plan.name, generation)
        if not run.whole:
            message = f"layout {run.request.plan.name!r} lacks imports that their holder has taken back"
            raise ExchangeError("state", message, hint="try again when they are back")
        revision = self._revise(source, run.request)
        run.require_room(revision.request)
        steps = transition(run.execution.plan.steps, revision.request.plan.steps)
        return PlannedRevision(self, run, self._touched(steps, revision.request.geometry), revision)

    def renewal(self, exports: frozenset[str]) -> PlannedRenewal:
        return PlannedRenewal(self, self._run, exports)

    def resources_of(self, exports: frozenset[str]) -> frozenset[Hashable]:
        """Return the resources whose memory stays in use while importers keep handles of some exports."""
        return frozenset(exported_resources(self._run.request.geometry, exports))

    def _touched(self, steps: Transition, geometry: Geometry) -> frozenset[str]:
        """Return the names of the exports whose objects a transition to a geometry releases or replaces."""
        undone = {step.provides for step in steps.undo}
        return frozenset(touched_exports(self._run.request.geometry, geometry, undone))

    @property
    def _exports(self) -> LayoutExports:
        return self._run.exports_of(self._run.request.geometry)


@dataclass(frozen=True, slots=True)
class _Planned:
    """Change of a held layout, and the exports that it touches."""

    held: HeldLayout
    run: Run
    touched: frozenset[str]

    @property
    def lost(self) -> frozenset[str]:
        return self.touched

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        try:
            with self.run.execution.announced("change"):
                return self._make(self.held.resources_of(in_use), full=full)
        except RollbackFailed as failed:
            self.held.failure = failed
            raise ChangeFailed(f"{failed}; the layout is taken down", broken=True) from failed
        except (StepFailed, Stopped) as failed:
            message = f"{failed or 'a signal'}; {self._after_failure()}"
            raise ChangeFailed(message, broken=False) from failed

    def _after_failure(self) -> str:
        return f"the layout is as before, in state {self.run.state!r}"

    def _make(self, in_use: frozenset[Hashable], *, full: bool) -> Checks:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PlannedSwitch(_Planned):
    """Switch of a held layout to one of its states."""

    state: str

    @property
    def lost(self) -> frozenset[str]:
        """Names of the exports with an object whose bytes neither stay in its memory nor are offloaded."""
        before, after = self.run.execution.plan, self.run.states[self.state]
        undone = {step.provides for step in self.run.transition_to(self.state).undo}
        had, has = _kept(before), _kept(after)
        lost = (undone - has[1]) | (had[1] - has[0] - has[1])
        geometry = self.run.request.geometry
        return frozenset(touched_exports(geometry, geometry, lost))

    def _make(self, in_use: frozenset[Hashable], *, full: bool) -> Checks:
        return self.run.switch(self.state, in_use, full=full)


@dataclass(frozen=True, slots=True)
class PlannedRenewal(_Planned):
    """Release and new creation of the memory of the touched exports."""

    def _after_failure(self) -> str:
        return f"the memory of {', '.join(sorted(self.touched))} is created for the next writer"

    def _make(self, in_use: frozenset[Hashable], *, full: bool) -> Checks:
        del in_use, full
        return self.run.renew(self.held.resources_of(self.touched))


@dataclass(frozen=True, slots=True)
class PlannedRevision(_Planned):
    """Change of a held layout to another spec."""

    revision: Revision

    def _make(self, in_use: frozenset[Hashable], *, full: bool) -> Checks:
        request = replace(self.revision.request, check="full" if full else "fast")
        self.run.change(request, in_use)
        self.held.source = self.revision.source
        return self.run.checks()


def _kept(plan: Plan) -> tuple[set[Hashable], set[Hashable]]:
    """Resources that exist in a plan, and those whose bytes are offloaded."""
    return {step.provides for step in plan.steps}, {step.keeps for step in plan.steps} - {None}
