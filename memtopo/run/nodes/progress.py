"""Progress of a run on several nodes, from the states that their agents report."""

from __future__ import annotations

from memtopo.plans.progress import Part, PhaseState, Progress

_NONE = Part(0, 0)


class NodesProgress:
    """Calls hooks as the phases of all nodes go on. The nodes meet after each phase, so that none is far behind.

    A phase begins as the first node enters it. Its steps are those of the nodes in it, each of which counts as a
    process.
    """

    def __init__(self, hooks: Progress) -> None:
        self._hooks = hooks
        self._states: dict[str, PhaseState | None] = {}
        self._name = ""
        self._counted: dict[str, Part] = {}

    def update(self, node: str, state: PhaseState | None) -> None:
        """Take the state of a node; None between phases."""
        before = self._states.get(node)
        self._states[node] = state
        if state is None:
            if not any(self._states.values()):
                self.end()
            return
        entered = before is None or before.name != state.name
        if entered and (self._name != state.name or state.in_bytes):
            self._begin(state)
        if self._name == state.name:
            self._count(node, state)

    def end(self) -> None:
        """End the last phase, as the nodes do or are lost."""
        self._name = ""
        self._hooks.end()

    def _begin(self, state: PhaseState) -> None:
        """Begin a phase, or one in bytes again as a further node enters it: its size is known only now."""
        self._name, self._counted = state.name, {}
        inside = {node: each for node, each in self._states.items() if each and each.name == state.name}
        if not state.in_bytes:
            self._hooks.phase(state.name, 0, dict.fromkeys(self._states, 0))
            return
        sizes = {node: each.whole.total for node, each in inside.items()}
        self._hooks.volume(state.name, sum(sizes.values()), sizes)
        for node, each in inside.items():
            self._count(node, each)

    def _count(self, node: str, state: PhaseState) -> None:
        done, total = self._counted.get(node, _NONE)
        self._counted[node] = state.whole
        self._hooks.extend(max(0, state.whole.total - total), node)
        self._hooks.advance(max(0, state.whole.done - done), node)
