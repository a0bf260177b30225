"""Random specs, valid and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memtopo import planner
from memtopo.diagnostics.model import Diagnostic, TextSpan
from memtopo.kinds import KINDS
from memtopo.kinds.runs import expanded
from memtopo.kinds.step import Phase, Step
from memtopo.language import Document
from memtopo.output.json import dumps
from memtopo.planner import Plan
from memtopo.plans.report import Check
from memtopo.rules import Validated, validate
from tests.helpers import multi_process_strategies, strategies
from tests.helpers.corruptions import corruptions
from tests.helpers.entry_order import ignore_entry_order
from tests.helpers.examples import check_block, examples
from tests.helpers.specs import run, run_request, validate_verbatim

MACHINE = strategies.machine()
ROOT = Path(__file__).parent.parent.parent
FEW = settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
SOME = settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
WHOLE_PLAN = """
import sys, json
from memtopo import planner
from memtopo.output.json import dumps
from memtopo.language import read_text
from memtopo.rules import validate
from tests.helpers import multi_process_strategies, strategies
machine = strategies.machine()
for text in json.load(sys.stdin):
    plan = planner.plan(validate(read_text(text.encode(), "spec"), machine).geometry, machine)
    print(dumps(plan.summary()), plan.steps)
"""


def plan_of_valid(validated: Validated) -> Plan:
    assert validated.geometry is not None, (validated.diagnostics, validated.document.text)
    return planner.plan(validated.geometry, MACHINE)


def test_random_specs_have_entries_of_every_kind() -> None:
    """In one process or in several; mappings and access among them."""
    found: set[str] = set()

    @settings(SOME, max_examples=40, derandomize=True, database=None)
    @given(strategies.dicts(external=True), multi_process_strategies.dicts())
    def note(one: dict[str, Any], several: dict[str, Any]) -> None:
        for spec in (one, *several["processes"].values()):
            found.update(spec, *[export.keys() for export in spec.get("exports", {}).values()])
            found.update(export["via"] for export in spec.get("exports", {}).values())

    note()
    assert {kind.section for kind in KINDS} - found == {"states"}
    assert {"chunk", "buffer", "event", "allocation", "dmabuf"} <= found


def vanishes(text: str, check: Check = "fast") -> None:
    """Every valid spec is built as declared and leaves nothing."""
    done = run(run_request(text, MACHINE, check), MACHINE)
    left = done.report.left
    assert (done.report.outcome, done.report.exit_code) == ("ok", 0), (done.report, text)
    assert done.ledger.empty
    assert left
    assert left.fds_after <= left.fds_before
    assert all(device.before == device.after for device in left.memory)


def spans(fault: Diagnostic, document: Document) -> list[TextSpan | None]:
    own = fault.span or document.span(fault.path, fault.at)
    return [own, *(label.span or document.span(label.path, label.at) for label in fault.labels)]


def is_inside(span: TextSpan | None, text: str) -> None:
    lines = text.removeprefix("\ufeff").split("\n")
    assert span
    assert (1, 1) <= (span.line, span.column) <= (span.end_line, span.end_column)
    assert span.end_line <= len(lines)
    assert span.column <= len(lines[span.line - 1]) + 1
    assert span.end_column <= len(lines[span.end_line - 1]) + 1


def is_answered(text: str) -> None:
    validated = validate_verbatim(text, MACHINE)
    for fault in validated.diagnostics:
        for span in spans(fault, validated.document):
            is_inside(span, text)
    if validated.geometry is not None and validated.geometry.produced:
        plan_of_valid(validated)  # without a producer of its imports it is not built
    elif validated.geometry is not None:
        done = run(run_request(text, MACHINE), MACHINE)
        assert done.report.outcome in ("ok", "different"), (done.report, text)
        assert done.ledger.empty
    else:
        assert validated.diagnostics


def steps(plan: Plan) -> dict[str, set[Step]]:
    return {phase: set(map(ignore_entry_order, expanded(found))) for phase, found in plan.phases}


@FEW
@given(strategies.specs(identified=True))
def test_a_valid_spec_is_built_as_declared_and_leaves_nothing(text: str) -> None:
    vanishes(text)


@FEW
@given(strategies.specs(identified=True))
def test_a_valid_spec_passes_a_full_check(text: str) -> None:
    vanishes(text, "full")


@pytest.mark.exhaustive(seconds=5)
@pytest.mark.parametrize("block", range(50))
def test_ten_thousand_valid_specs_are_built_as_declared(block: int) -> None:
    check_block(block, 200, lambda text: vanishes(text), strategies.specs(identified=True))


@FEW
@given(corruptions())
def test_a_broken_spec_gets_diagnostics_with_positions(text: str) -> None:
    """Never a traceback; a spec that remains valid is built."""
    is_answered(text)


@pytest.mark.exhaustive(seconds=5)
@pytest.mark.parametrize("block", range(50))
def test_ten_thousand_broken_specs_get_diagnostics(block: int) -> None:
    check_block(block, 200, is_answered, corruptions())


@SOME
@given(st.data())
def test_the_order_of_sections_and_keys_does_not_change_steps(data: st.DataObject) -> None:
    spec = data.draw(strategies.dicts(identified=True, external=True))
    text = data.draw(strategies.written(spec))
    shuffled = data.draw(strategies.written(data.draw(strategies.shuffled(spec))))
    one = plan_of_valid(validate_verbatim(text, MACHINE))
    other = plan_of_valid(validate_verbatim(shuffled, MACHINE))
    assert steps(one) == steps(other)
    assert dict(one.phases).get(Phase.OPEN) == dict(other.phases).get(Phase.OPEN)
    assert one.memory == other.memory
    assert len(one.steps) == len(other.steps)


@SOME
@given(strategies.dicts(identified=True, external=True))
def test_a_spec_of_python_objects_equals_its_text(spec: strategies.Spec) -> None:
    head = {"memtopo": 1, "name": "random"}
    given_ = validate(Document.from_object(head | spec), MACHINE)
    assert plan_of_valid(given_).steps == plan_of_valid(validate_verbatim(json.dumps(head | spec), MACHINE)).steps


@SOME
@given(strategies.specs(identified=True, external=True))
def test_a_spec_has_one_plan(text: str) -> None:
    """To the byte."""
    one, other = plan_of_valid(validate_verbatim(text, MACHINE)), plan_of_valid(validate_verbatim(text, MACHINE))
    assert dumps(one.summary()) == dumps(other.summary())
    assert one == other


@settings(max_examples=1, suppress_health_check=list(HealthCheck))
@given(st.lists(strategies.specs(identified=True, external=True), min_size=20, max_size=20))
def test_a_plan_does_not_depend_on_the_hash_seed(specs: list[str]) -> None:
    plans = [_plans(specs, seed) for seed in ("0", "4711")]
    assert plans[0]
    assert plans[0] == plans[1]


def _plans(specs: list[str], seed: str) -> bytes:
    command = [sys.executable, "-c", WHOLE_PLAN]
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    given_ = json.dumps(specs).encode()
    return subprocess.run(command, input=given_, env=environment, check=True, capture_output=True, cwd=ROOT).stdout
