"""Imports of a run from holders outside of its spec: they go and come back as these holders change their layouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

from memtopo import planner
from memtopo.common.errors import MemtopoError
from memtopo.executor import StepFailed
from memtopo.run.apply import Run
from memtopo.run.change import RollbackFailed, all_or_nothing, change
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.imports import NOT_NOW, HolderHandles
from memtopo.sharing.status import Notice


class Imports:
    """Imports of a built run, whose handle source is `handles`. Addresses stay while the memory is gone.

    `moved` is called whenever mappings were undone or made, before the holder learns of it.
    """

    def __init__(self, run: Run, handles: HolderHandles, moved: Callable[[], None] = lambda: None) -> None:
        self._run, self._handles, self._moved = run, handles, moved
        self._absent: set[tuple[str, str]] = set()

    def absent(self, holder: str) -> frozenset[str]:
        """Return the names of the exports of a holder whose objects are gone."""
        return frozenset(export for name, export in self._absent if name == holder)

    def concerned(self, holder: str, notice: Notice) -> frozenset[str]:
        """Return the exports that a notice is about and that this run imports."""
        return self._imported(holder).intersection(notice.exports)

    def follow(self, holder: str, notice: Notice) -> None:
        """Let go of what a holder takes back, or import again what it has changed.

        What cannot be had yet stays away until the next notice. Raises `StepFailed` with everything as it was before,
        `RollbackFailed`, and `ExchangeError` if the holder is gone.
        """
        if notice.kind == "changing":
            self._let_go(holder, notice.exports)
        elif notice.kind == "changed":
            exports = self.concerned(holder, notice)
            if replaced := [each for each in exports if self._is_older(holder, each, notice.generation)]:
                self._let_go(holder, replaced)
            self._import(holder, {each for each in exports if self._is_back(holder, each)})

    def _is_older(self, holder: str, export: str, generation: int) -> bool:
        return (holder, export) not in self._absent and self._handles.generation(holder, export) < generation

    def _is_back(self, holder: str, export: str) -> bool:
        return (holder, export) in self._absent and self._handles.available(holder, export)

    def _let_go(self, holder: str, exports: Iterable[str]) -> None:
        own = self._imported(holder).intersection(exports)
        self._change(self._absent | {(holder, export) for export in own})
        self._handles.let_go(holder, exports)

    def _import(self, holder: str, exports: Collection[str]) -> None:
        if not exports:
            return
        try:
            self._change(self._absent - {(holder, export) for export in exports})
            self._require_declared()
        except RollbackFailed:
            raise
        except StepFailed as failed:
            self._let_go(holder, exports)
            if not isinstance(failed.error, ExchangeError) or failed.error.code not in NOT_NOW:
                raise

    def _require_declared(self) -> None:
        """Raise `StepFailed` if the layout is not as declared."""
        for each in self._run.recheck().differences:
            error = MemtopoError(f"{each.aspect} of {each.subject} is {each.seen}, not {each.wanted}")
            raise StepFailed(None, "check of what is imported again", error)

    def _change(self, absent: set[tuple[str, str]]) -> None:
        """Bring the layout to its state without the objects of absent exports."""
        if absent == self._absent:
            return
        execution, state = self._run.execution, self._run.states[self._run.state]
        try:
            with all_or_nothing(execution):
                change(execution, planner.without(state, set(self._resources(absent))))
            self._absent = absent
        finally:
            self._moved()

    def _resources(self, exports: set[tuple[str, str]]) -> Iterator[Hashable]:
        for group in self._run.request.geometry.every:
            if group.origin and group.external and (group.origin.holders[0], group.origin.export) in exports:
                yield from ((group.noun, group.label(index)) for index in range(group.count))

    def _imported(self, holder: str) -> frozenset[str]:
        """Exports of a holder that the run imports, without memory of other APIs, which no holder takes back."""
        groups = (each for each in self._run.request.geometry.every if each.external and not each.produced)
        return frozenset(each.origin.export for each in groups if each.origin and each.origin.holders[0] == holder)
