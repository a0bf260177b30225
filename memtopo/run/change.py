"""A change of one process of a layout: planned, made stage by stage with all processes, then ended or rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from memtopo.common.errors import MemtopoError, Stopped
from memtopo.executor import StepFailed
from memtopo.planner import Plan
from memtopo.plans.report import Checks
from memtopo.plans.transition import Stage, Transition
from memtopo.run.base_run import BaseRun
from memtopo.run.layout_plans import LayoutPlans, Variant
from memtopo.run.messages import ChangeResult
from memtopo.run.reports import FindingTally
from memtopo.run.transition import RollbackFailed, StagedTransition, require_declared
from memtopo.run.verification.fingerprints import Fingerprints
from memtopo.session.request import RunRequest
from memtopo.sharing.offers import Offer

_LAST = tuple(Stage)[-1]


@dataclass(frozen=True, slots=True)
class Target:
    """Variant that the layout is brought to; `request` is that of another spec, if it is changed to one.

    With `full`, fingerprints compare the bytes that the change keeps.
    """

    plans: LayoutPlans
    variant: Variant
    plan: Plan
    steps: Transition
    full: bool
    request: RunRequest | None = None


class Change:
    """Change of a run to a target. `findings` are those of its check, if it was checked."""

    def __init__(self, run: BaseRun, target: Target) -> None:
        self._run, self._target = run, target
        self.findings: FindingTally | None = None
        self._making: StagedTransition | None = None
        self._recording = ExitStack()
        self._record_held: Callable[[], None] = lambda: None
        self._kept: Fingerprints | None = None
        self._offers: tuple[Offer, ...] | None = None
        self._reason = ""

    def make(self, stage: Stage) -> None:
        """Do one stage. Raises `StepFailed` or `Stopped`."""
        making = self._making or self._begin()
        self._advance(making, stage)
        if stage is _LAST:  # not in the check, after which other processes release contexts
            making.arrive()
            self._record_held()

    def check(self) -> None:
        """Check the layout after all stages, before the change is ended. Raises `StepFailed` or `Stopped`."""
        run, target = self._run, self._target
        if target.request is None:
            self.findings = run.check_switched(self._kept)
            return
        self.findings = run.check_changed(target.request, target.steps, self._kept)
        self._offers = tuple(run.exports.offers())
        run.suspend(target.request)

    def start_rollback(self, reason: str) -> None:
        """Make the stages those of the rollback. Raises `RollbackFailed`."""
        self._reason = reason
        self.abandon()
        self._run.expect(self._run.request.geometry)
        if self._making:
            with self._rolling_back():
                self._making.turn_back()

    def roll_back(self, stage: Stage) -> None:
        """Do one stage of the rollback. Raises `RollbackFailed`."""
        if self._making:  # else it could not begin
            with self._rolling_back():
                self._advance(self._making, stage)

    def end(self) -> ChangeResult:
        """End the change, or its rollback, of which all stages are done. Raises `RollbackFailed`."""
        touched = self._making is not None and self._making.end()
        if self._reason:
            with self._rolling_back():
                require_declared(self._run.execution)
            return ChangeResult(touched=touched)
        self._recording.close()
        self._run.adopt(self._target.plans, self._target.variant, self._target.request, self.findings)
        return replace(self._presented(), touched=touched, offers=self._offers)

    def abandon(self) -> None:
        """Give back what the change holds besides the layout, which is rolled back or taken down."""
        self._recording.__exit__(Stopped, Stopped(), None)

    def _begin(self) -> StagedTransition:
        run, target = self._run, self._target
        self._kept = Fingerprints.take(run.execution, target.plan) if target.full else None
        self._making = StagedTransition(run.execution, target.plan, target.steps)
        if target.request:
            run.expect(target.request.geometry)
            self._record_held = self._recording.enter_context(run.balance.changing(target.request.geometry.gpus))
        return self._making

    def _advance(self, making: StagedTransition, stage: Stage) -> None:
        with self._run.execution.timed("change", making.count(stage), announce=False):
            making.advance(stage)

    def _presented(self) -> ChangeResult:
        """Results of the check of what the layout was changed to, or why they cannot be shown."""
        if self.findings is None:
            return ChangeResult()
        show = self._run.checks if self._target.request else self.findings.checks
        found: list[Checks] = []
        result = attempted(lambda: found.append(show()))
        return replace(result, checks=found[0] if found else None)

    @contextmanager
    def _rolling_back(self) -> Iterator[None]:
        try:
            yield
        except StepFailed as failed:
            raise RollbackFailed(self._reason, failed) from failed
        except Exception as error:
            raise RollbackFailed(self._reason, StepFailed(None, "rollback", error)) from error


def attempted(act: Callable[[], object]) -> ChangeResult:
    """Result of a part of a change that may be refused, or fail and be rolled back. Raises `RollbackFailed`."""
    try:
        act()
    except RollbackFailed:
        raise
    except StepFailed as failed:
        return ChangeResult(str(failed))
    except MemtopoError as refused:
        return ChangeResult(refused.message, refused.hint)
    except Stopped:
        return ChangeResult("interrupted")
    except Exception as error:  # noqa: BLE001 an error of memtopo itself is rolled back as any other
        return ChangeResult(f"internal error: {type(error).__name__}: {error}")
    return ChangeResult()
