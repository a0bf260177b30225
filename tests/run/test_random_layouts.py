"""Valid specs are built: specs of a generator without the rules, on machines with all kinds of support."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from memtopo.machine import Machine
from memtopo.plans.report import Report
from memtopo.rules import Validated
from tests.helpers.random_layouts import random_layout, random_machine
from tests.helpers.specs import run, run_request, validate_verbatim

SAMPLE, MANY, BLOCKS = 60, 400, 21


def reported(text: str, machine: Machine) -> Report:
    return run(run_request(text, machine, "full"), machine).report


def validated(seed: int) -> tuple[Validated, str, Machine]:
    machine = random_machine(seed)
    text = random_layout(seed, machine)
    return validate_verbatim(text, machine), text, machine


def assert_valid_ones_are_built(seeds: Iterable[int]) -> int:
    """Apply what validates, and return the number of such specs."""
    built = 0
    for seed in seeds:
        found, text, machine = validated(seed)
        if found.geometry is None:
            continue
        report = reported(text, machine)
        assert report.outcome == "ok", (seed, report.outcome, report.failure, report.checks, text)
        built += 1
    return built


def test_every_valid_random_layout_is_built_as_declared() -> None:
    assert assert_valid_ones_are_built(range(SAMPLE)) > SAMPLE // 4


@pytest.mark.exhaustive(seconds=3)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_valid_random_layout_of_many_is_built_as_declared(block: int) -> None:
    first = block * MANY
    assert assert_valid_ones_are_built(range(first, first + MANY)) > MANY // 4
