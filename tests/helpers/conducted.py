"""Runs in this process, as tests have them."""

from __future__ import annotations

from typing import Any

from memtopo.driver.ledger import Ledger
from memtopo.executor import Execution
from memtopo.kinds.ipc.steps import EVENT_HANDLES
from memtopo.planner import Plan
from memtopo.plans.transition import Stage, transition
from memtopo.run.apply import ThisProcess
from memtopo.run.process_run import ProcessRun
from memtopo.run.transition import Change
from memtopo.session.composition import RunRequest

Conducted = ThisProcess


def conducted(request: RunRequest, ledger: Ledger, **terms: Any) -> Conducted:
    """A run that is not built yet."""
    return ThisProcess(ProcessRun(request, ledger, **terms))


def state_by_labels(execution: Execution, ledger: Ledger) -> tuple[object, ...]:
    """State of a layout by the labels of its spec: open objects, ranges, mappings, and other resources."""
    layout = execution.layout
    mapped = {
        (label, address - base): chunk
        for address, chunk in layout.mappings.items()
        for label, (base, size) in layout.ranges.items()
        if base <= address < base + size
    }
    sizes = {label: size for label, (_, size) in layout.ranges.items()}
    labels = [sorted(each) for each in (layout.chunks, layout.buffers, layout.of(EVENT_HANDLES), layout.memory)]
    counts = {what: count for what, count in ledger.counts().items() if count}
    return counts, sizes, mapped, labels, sorted(layout.contexts)


def make_transition(execution: Execution, plan: Plan) -> bool:
    """Bring a built layout to another plan, or back if it fails; return true if that touched anything.

    Raises `StepFailed`, `Stopped`, `RollbackFailed`.
    """
    change = Change(execution, plan, transition(execution.plan.steps, plan.steps))
    try:
        for stage in Stage:
            change.make(stage)
    except BaseException as failure:
        change.start_rollback(str(failure))
        for stage in Stage:
            change.make(stage)
        change.end()
        raise
    return change.end()
