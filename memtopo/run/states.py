"""States of a held layout, for its holder."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.executor import StepFailed
from memtopo.kinds.exports import ExportGroup
from memtopo.plans.report import Checks
from memtopo.run.apply import Run
from memtopo.run.change import RollbackFailed
from memtopo.sharing.offers import SwitchFailed


class HeldStates:
    """States of a run that is held. `failure` is set when a switch has left a layout that can only be taken down."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.failure: RollbackFailed | None = None

    @property
    def state(self) -> str:
        """Name of the state that the layout is in."""
        return self._run.state

    @property
    def names(self) -> Sequence[str]:
        """Names of all states."""
        return tuple(self._run.states)

    def without(self, state: str) -> frozenset[str]:
        """Return the names of the exports that have no memory in a state."""
        present = {step.provides for step in self._run.states[state].steps}
        exports = self._run.request.geometry.of(ExportGroup)
        return frozenset(name for name, group in exports.items() if not present.issuperset(group.resources))

    def switch(self, state: str) -> Checks:
        """Bring the layout to a state, and return the results of its check. Raises `SwitchFailed`."""
        try:
            return self._run.switch(state)
        except RollbackFailed as failed:
            self.failure = failed
            raise SwitchFailed(f"{failed}; the layout is taken down", broken=True) from failed
        except StepFailed as failed:
            raise SwitchFailed(f"{failed}; the layout is {self.state}, as before", broken=False) from failed
