"""Random multi-process specs: validation and plans, independent of order."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memtopo import planner
from memtopo.kinds.chunks.steps import ImportChunk, TryExportChunk
from memtopo.kinds.ipc.steps import OpenBuffer, OpenEvent, TryExportBuffer, TryExportEvent
from memtopo.kinds.step import Phase, Step
from memtopo.language import read_text
from memtopo.output.json import dumps
from memtopo.planner import Plan
from tests.fuzz import checks
from tests.helpers import multi_process_strategies, strategies
from tests.helpers.corruptions import corruptions
from tests.helpers.entry_order import ignore_entry_order
from tests.helpers.examples import examples
from tests.helpers.specs import validate_verbatim

MACHINE = strategies.machine()
FEW = settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))


def plan_of_clean(text: str) -> Plan:
    found = validate_verbatim(text, MACHINE)
    assert found.geometry, (found.diagnostics, text)
    assert not found.diagnostics, (found.diagnostics, text)
    return planner.plan(found.geometry, MACHINE)


def handles(plan: Plan) -> dict[tuple[str, str], int]:
    """Number of handles of each export, by process."""
    found: dict[tuple[str, str], int] = {}
    for label, process in plan.processes.items():
        for step in process.steps:
            if isinstance(step, TryExportChunk | TryExportBuffer | TryExportEvent):
                found[label, step.label] = getattr(step, "count", 1)
    return found


def is_sound(plan: Plan) -> None:
    """Assert that each import is one handle of an export of the same kind, and that phases follow one another."""
    offered = handles(plan)
    for process in plan.processes.values():
        assert [phase for phase, _ in process.phases] == [phase for phase in Phase if _of(process, phase)]
        for step in process.steps:
            if isinstance(step, ImportChunk | OpenBuffer | OpenEvent):
                assert 0 <= step.source.number < offered[step.source.holder, step.source.export]
                exporting = {ImportChunk: TryExportChunk, OpenBuffer: TryExportBuffer, OpenEvent: TryExportEvent}[
                    type(step)
                ]
                exports = _of(plan.processes[step.source.holder], Phase.EXPORT)
                assert step.source.export in [
                    each.describe().subject for each in exports if isinstance(each, exporting)
                ]


def _of(plan: Plan, phase: Phase) -> list[Step]:
    return [step for step in plan.steps if step.phase == phase]


@FEW
@given(multi_process_strategies.specs())
def test_a_valid_multi_process_spec_is_planned_without_diagnostics(text: str) -> None:
    """Imports match the exports."""
    is_sound(plan_of_clean(text))


@FEW
@given(multi_process_strategies.specs())
def test_a_multi_process_spec_has_one_plan_for_each_process(text: str) -> None:
    """To the byte."""
    one, other = plan_of_clean(text), plan_of_clean(text)
    assert dumps(one.summary()) == dumps(other.summary())
    assert one == other


@FEW
@given(st.data())
def test_the_order_of_processes_does_not_change_calls(data: st.DataObject) -> None:
    """Nor does the order of sections and entries."""
    spec = data.draw(multi_process_strategies.dicts())["processes"]
    order = data.draw(st.permutations([*spec]))
    mixed = {name: data.draw(strategies.shuffled(_sections(spec[name]))) for name in order}
    one = plan_of_clean(_text(spec))
    other = plan_of_clean(_text({name: mixed[name] | _head(spec[name]) for name in mixed}))
    assert {*one.processes} == {*other.processes}
    for label, plan in one.processes.items():
        assert {*map(ignore_entry_order, plan.steps)} == {*map(ignore_entry_order, other.processes[label].steps)}
    assert one.memory == other.memory


@FEW
@given(corruptions(multi_process_strategies.specs()))
def test_a_broken_multi_process_spec_gets_diagnostics_with_positions(text: str) -> None:
    """Never a traceback."""
    checks.answered(read_text(text.encode(), "random.yaml"))


def _sections(process: strategies.Spec) -> strategies.Spec:
    return {key: value for key, value in process.items() if key != "count"}


def _head(process: strategies.Spec) -> strategies.Spec:
    return {key: value for key, value in process.items() if key == "count"}


def _text(processes: strategies.Spec) -> str:
    return json.dumps({"memtopo": 1, "name": "random", "processes": processes})
