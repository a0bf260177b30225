"""Runs in this process, as tests have them."""

from __future__ import annotations

from typing import Any

from memtopo.driver.ledger import Ledger
from memtopo.executor import Execution, StepFailed
from memtopo.planner import Plan
from memtopo.plans.transition import Stage, transition
from memtopo.run.apply import ThisProcess
from memtopo.run.process_run import ProcessRun
from memtopo.run.transition import RollbackFailed, StagedTransition
from memtopo.session.request import RunRequest

Conducted = ThisProcess


def conducted(request: RunRequest, ledger: Ledger, **terms: Any) -> Conducted:
    """A run that is not built yet."""
    return ThisProcess(ProcessRun(request, ledger, **terms))


def make_transition(execution: Execution, plan: Plan) -> bool:
    """Bring a built layout to another plan, or back if it fails; return true if that touched anything.

    Raises `StepFailed`, `Stopped`, `RollbackFailed`.
    """
    with execution.timed("change", announce=False):
        making = StagedTransition(execution, plan, transition(execution.plan.steps, plan.steps))
        try:
            for stage in Stage:
                making.advance(stage)
        except BaseException as failure:
            making.start_rollback()
            try:
                for stage in Stage:
                    making.advance(stage)
            except StepFailed as error:
                raise RollbackFailed(str(failure), error) from error
            making.end()
            raise
        return making.end()
