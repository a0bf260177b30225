"""The conductor of a run: takes the one to n processes of a layout through build, checks, changes and teardown.

They run in this process (`memtopo.run.apply`) or in workers (`memtopo.run.processes.workers`), and no more differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self, TypeVar

from memtopo.common.errors import Failed, InternalError, Stopped, message_of
from memtopo.driver.handles import Handle
from memtopo.executor import StepFailed, failing
from memtopo.kinds.layout import HandleSource
from memtopo.kinds.runs import number_of_steps
from memtopo.kinds.step import Phase
from memtopo.language.names import AWAKE
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check, Checks, Report
from memtopo.plans.transition import Stage
from memtopo.run import messages
from memtopo.run.layout_plans import WHOLE, Absent, Goal, LayoutPlans, Variant, paths, stops
from memtopo.run.messages import BuildPhase, ChangeCommand, ChangeResult, CheckChange, Command, Lend, MakeStage
from memtopo.run.reports import merged_checks
from memtopo.run.saving import SavedContents, has_content, require_pieces, saved_contents, saved_layout
from memtopo.run.transition import RollbackFailed
from memtopo.run.verification.rounds import UNSAFE
from memtopo.session.composition import HoldResult, RunRequest
from memtopo.sharing.offers import ChangeFailed, Offer
from memtopo.storage.saved import Index, Saved, refusing, saving_to

if TYPE_CHECKING:
    from memtopo.sharing.status import LayoutEnd

C = TypeVar("C", bound="Conductor")


class Aborted(Exception):
    """A process failed, died or was interrupted, as its report says: all processes are to be taken down."""


class Conductor:
    """One run of a layout: its request, the variant of it that exists, and the verbs that all its processes follow.

    `stop` returns the number of a signal that requests a stop, or 0; it rolls a change back. `labels` are those of the
    processes here. Verbs are defined here, and what they need of the processes where these run.
    """

    labels: Collection[str]
    as_declared = True
    """True as long as no process found a difference."""
    safe = True
    """True as long as kernels may verify bytes in all processes."""

    def __init__(
        self,
        request: RunRequest,
        plans: LayoutPlans,
        progress: Progress,
        stop: Callable[[], int],
        variant: Variant = WHOLE,
    ) -> None:
        self.request, self.plans, self.progress, self.stop = request, plans, progress, stop
        self.variant = variant
        self.generation = 1
        self.hold_result = HoldResult()
        self.failure: RollbackFailed | None = None
        """Failure of a rollback, after which the layout can only be taken down."""
        self._results: Mapping[str, ChangeResult] = {}
        self._saved = SavedContents()

    @property
    def state(self) -> str:
        return self.variant[0]

    @property
    def absent(self) -> Absent:
        """Resources that are absent, with what needs them."""
        return self.variant[1]

    @property
    def whole(self) -> bool:
        """True if everything that the spec declares exists: no state and no holder has taken some of it away."""
        return self.variant == WHOLE

    def build(self) -> None:
        plans = self.plans.of(WHOLE)
        used = {phase for plan in plans.values() for phase, steps in plan.phases if steps}
        for phase in Phase:
            if phase in used or phase is Phase.RESERVE:
                with self.timed(phase, self._steps(phase)):
                    self.each(BuildPhase(phase))
                    if phase is Phase.RESERVE:
                        self.agree()

    def _steps(self, *phases: Phase) -> int:
        """Number of steps of some phases in the processes here."""
        plans = [plan for label, plan in self.plans.of(WHOLE).items() if label in self.labels]
        return sum(number_of_steps(items) for plan in plans for phase, items in plan.phases if phase in phases)

    def check(self) -> None:
        with self.timed("check", self._steps(*Phase)):
            self.each(messages.CheckSteps())

    def verify(self) -> None:
        """Have all processes verify the memory by bytes, in rounds: each writes before any reads."""
        with self.timed("verify", len(self.labels)):
            if not self.safe:
                self.each(messages.SkipVerification(UNSAFE))
                return
            for index in range(self.rounds):
                self.each(messages.WriteRound(index))
                if self.request.check == "full" and index == 0:
                    self.each(messages.TryForbidden())
                self.each(messages.ReadRound(index))

    def rehearse(self) -> None:
        """Have all processes go through the states of the layout and back, and check each."""
        states, full = self.plans.states, self.request.check == "full"
        with self.timed("rehearse", stops(states)), failing("rehearsal of the states"):
            for path in paths(states):
                self.each(messages.WriteKept(path))
                for state in (*path, AWAKE):
                    self.switch(state, check="full" if full and self.safe else "none")
                    self.each(messages.ReadKept(path))

    def hold(self, hold: Callable[[Self], HoldResult]) -> None:
        self.progress.end()
        with failing("hold the layout"):
            self.hold_result = hold(self)
        if self.failure:
            raise self.failure
        if self.watch() < 0:
            raise Aborted

    def release_contexts(self) -> None:
        """Have all processes keep the layout and its exports, without contexts that only changes and checks need."""
        self.each(messages.Hold())

    def restore(self, folder: str) -> None:
        """Have all processes copy the bytes of a saved folder to their memory, before the layout is served."""
        with self.timed("restore", 0):
            self.each(messages.RestoreBytes(folder))
            with failing("restore of saved bytes"):
                self._saved = saved_contents(folder)

    @property
    def committed(self) -> frozenset[str]:
        """Exports that were committed when the folder was saved, and whose objects have all come back."""
        exports, (names, pieces) = self.exports(), self._saved
        known = {name: exports[name] for name in names if name in exports}
        return frozenset(name for name, (label, offer) in known.items() if has_content(pieces[label], offer))

    def save(self, path: str, committed: Collection[str] = ()) -> Saved:
        """Write the bytes of all processes to a folder. The folder has the save before, or all of this one.

        `committed` are the exports whose content is committed. Raises `MemtopoError`.
        """
        with saving_to(path, self.request.layout_name) as folder:
            try:
                parts = self.ask(dict.fromkeys(self.labels, messages.SaveBytes(path, token_hex(8))))
            except (StepFailed, Stopped) as error:
                hint = error.hint if isinstance(error, StepFailed) else None
                raise Failed(f"not saved: {str(error) or 'interrupted'}", hint=hint) from error
            require_pieces(self.request.layout_name, self.state, parts.values())
            files = {process: part.file for process, part in parts.items()}
            with refusing(path):
                folder.write_index(Index(self.request.layout_name, self.request.digest, files, tuple(committed)))
        return saved_layout(self.request.layout_name, path, list(parts.values()))

    def switch(self, state: str, in_use: Collection[str] = (), *, check: Check = "fast") -> Checks:
        """Bring the layout to one of its states, and return the results of its check: of a full one also by bytes.

        Importers keep the memory of `in_use` exports. Raises `MemtopoError` before anything is changed; `StepFailed`,
        `Stopped` or what interrupted it after all processes were brought back to the state before, and checked;
        `RollbackFailed` or `ChangeFailed` if the layout can only be taken down.
        """
        self._bring_to(Goal((state, self.absent), check, in_use))
        return self.checks()

    def set_absent(self, absent: Absent) -> None:
        """Bring the layout to its state without some resources and what needs them, and with all others, unchecked.

        Raises as `switch` does.
        """
        self._bring_to(Goal((self.state, absent), "none"))

    def recreate(self, resources: Absent) -> Checks:
        """Release some resources with what needs them, create them anew, and return the results of the queries.

        Raises as `switch` does; if they cannot be created, they stay away until they are created again.
        """
        with self.attended(self.state):
            self.set_absent(self.absent | resources)
            self._bring_to(Goal((self.state, self.absent - resources)))
        return self.checks()

    def change(
        self, request: RunRequest, source: str = "", in_use: Collection[str] = (), absent: Absent = frozenset()
    ) -> None:
        """Bring the layout, in state awake, to another request, in which resources are `absent`. Raises as `switch`.

        `source` is the source of its spec, which processes elsewhere read. `checks` has the results of its check.
        """
        self._bring_to(Goal((AWAKE, absent), request.check, in_use, request, source))

    def checks(self) -> Checks:
        """Results of the check of the last change. Raises `InternalError` if a process cannot show its own."""
        if failed := failures(self._results):
            raise InternalError(failed)
        return merged_checks({label: each.checks for label, each in self._results.items() if each.checks})

    def recheck(self) -> Checks:
        """Check the layout once more while it is held, by queries. Raises `MemtopoError`."""
        answers = self.ask(dict.fromkeys(self.labels, messages.Recheck()))
        return merged_checks({label: each.checks for label, each in answers.items()})

    def lend(self, export: str, count: int) -> Sequence[int]:
        """Have objects of an export for a client, and return their numbers. Raises `MemtopoError`."""
        return self._lend(export, count=count)

    def take_back(self, export: str, numbers: Sequence[int]) -> None:
        """Have objects of an export that no client has any more. Raises `MemtopoError`."""
        self._lend(export, back=tuple(numbers))

    def lent(self, export: str) -> Collection[int]:
        """Return the numbers of the objects of an export that clients have. Raises `MemtopoError`."""
        return self._lend(export, listed=True)

    def _lend(self, export: str, **what: Any) -> Sequence[int]:
        label, name = self.exporter(export)
        numbers: Sequence[int] = self.ask({label: Lend(name, **what)})[label].numbers
        return numbers

    @contextmanager
    def announced(self, phase: str) -> Iterator[None]:
        """Show the code inside as a phase of a held layout, whose steps are counted as the processes begin them."""
        self.progress.phase(phase, 0, {label: 0 for label in self.labels if label})
        try:
            yield
        finally:
            self.progress.end()

    def _bring_to(self, goal: Goal) -> None:
        with self.attended(goal.variant[0], goal.source):
            plans = self.plan(goal)
            commands: list[ChangeCommand] = [MakeStage(stage) for stage in Stage]
            if goal.check != "none" or goal.request:
                commands.append(CheckChange())
            try:
                for command in commands:
                    self.change_each(command)
                    if self.stop():
                        raise Stopped  # noqa: TRY301 as if a process had found it
            except ChangeFailed:
                raise
            except BaseException as failure:
                self._roll_back(message_of(failure) or "interrupted")
                raise
            self._results = self._end_change()
            self.request, self.plans, self.variant = goal.request or self.request, plans, goal.variant

    def _roll_back(self, reason: str) -> None:
        """Go back through all stages in all processes. Raises `RollbackFailed` or `ChangeFailed`."""
        try:
            self.change_each(messages.StartRollback(reason))
            for stage in Stage:
                self.change_each(MakeStage(stage, back=True))
            self._end_change()
        except RollbackFailed as failed:
            self.failure = failed
            raise

    def _end_change(self) -> Mapping[str, ChangeResult]:
        results = self.change_each(messages.EndChange())
        self.generation += any(each.touched for each in results.values())
        return results

    def report(self) -> Report:
        raise NotImplementedError

    def attended(self, state: str | None = None, source: str = "") -> AbstractContextManager[object]:
        """Have all processes take part in the code inside, which brings the layout to a state, and a spec, if it does.

        Raises `ExchangeError` if one does not in time.
        """
        del state, source
        return nullcontext()

    @property
    def interval(self) -> float:
        """Seconds within which `watch` has to be called again."""
        return math.inf

    @property
    def rounds(self) -> int:
        """Number of rounds of the verification."""
        raise NotImplementedError

    @property
    def handle_source(self) -> HandleSource | None:
        """Source of the imports of this process, if it is one of the layout."""
        return None

    @property
    def contexts(self) -> Sequence[str]:
        """GPU of each context that a process keeps."""
        raise NotImplementedError

    @property
    def pids(self) -> Mapping[str, int]:
        """Numbers of the processes, by label; 0 for one of another pid namespace."""
        raise NotImplementedError

    @property
    def layout_end(self) -> LayoutEnd | None:
        """End of a layout of a user's processes, once one of them has ended or left, or it is released."""
        return None

    def each(self, command: Command) -> None:
        """Have every process execute a command. Raises if one fails; then all are to be taken down."""
        raise NotImplementedError

    def agree(self) -> None:
        """Bring ranges that instances of a process have in common to the same addresses."""

    def plan(self, goal: Goal) -> LayoutPlans:
        """Have every process plan a change to a goal, and return the plans of its spec.

        Raises `MemtopoError` if one refuses; nothing is changed yet.
        """
        raise NotImplementedError

    def change_each(self, command: ChangeCommand) -> Mapping[str, ChangeResult]:
        """Have every process do a part of the planned change. Raises an error after which it can be rolled back.

        Raises `RollbackFailed` and `ChangeFailed` if the layout can only be taken down.
        """
        raise NotImplementedError

    def ask(self, commands: Mapping[str, Command]) -> Mapping[str, Any]:
        """Have processes execute commands for a client, by label, and return the answers. Raises `MemtopoError`."""
        raise NotImplementedError

    def exports(self) -> Mapping[str, tuple[str, Offer]]:
        """Return the exports by name, each with the label of its process, and as this offers it."""
        raise NotImplementedError

    def handle(self, export: str, index: int) -> Handle:
        """Return a new handle of an object of an export. Raises `MemtopoError`."""
        raise NotImplementedError

    def exporter(self, export: str) -> tuple[str, str]:
        """Return the label of the process of an export, and its name there, even if it is not offered any more."""
        raise NotImplementedError

    def timed(self, phase: str, steps: int) -> AbstractContextManager[object]:
        """Show and record the time of a phase of so many steps, unless a process records it itself."""
        raise NotImplementedError

    def watch(self) -> int:
        """Return the number of the signal that requests a stop, -1 if a process has ended, else 0."""
        return self.stop()

    def recording_failure(self) -> AbstractContextManager[object]:
        """Record a failure or a stop for the report, and continue after the block."""
        raise NotImplementedError

    def take_down(self) -> None:
        """Take all processes down; no failure stops that."""
        raise NotImplementedError


def conduct(conductor: C, hold: Callable[[C], HoldResult] | None = None) -> Report:
    """Build all processes, check and verify them, and take them down; `hold` is called if everything is as declared.

    Errors of the run are in the report, not raised.
    """
    try:
        with conductor.recording_failure():
            conductor.build()
            conductor.check()
            conductor.verify()
            if conductor.request.rehearse and conductor.as_declared:
                conductor.rehearse()
            if conductor.request.source and conductor.as_declared:
                conductor.restore(conductor.request.source)
            if hold and conductor.as_declared:
                conductor.hold(hold)
    finally:
        conductor.take_down()
    return conductor.report()


def failures(results: Mapping[str, ChangeResult]) -> str:
    """Errors of all processes that have one, by label."""
    return "; ".join(f"{label}: {each.error}".removeprefix(": ") for label, each in results.items() if each.error)
