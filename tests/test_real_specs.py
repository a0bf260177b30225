"""Layouts of real systems: each spec of specs/real is what docs/systems.md says about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from memtopo import machine, planner
from memtopo.language import read_file
from memtopo.rules.validation import validate
from tests.helpers.specs import ROOT, run, run_request

REAL = sorted((ROOT / "specs" / "real").glob("*.yaml"))
MOST_LINES = 40


@dataclass(frozen=True)
class System:
    """A line of the table: the spec, the machine that it fits, and settings with which it is small."""

    path: Path
    machine: str
    settings: Mapping[str, str]

    @property
    def several_processes(self) -> bool:
        return "\nprocesses:" in self.path.read_text()


def systems() -> list[System]:
    rows = re.findall(r"^\| \[\S+\]\(\.\./(\S+)\) \| [^|]+ \| (\w+) \| ([^|]+) \|$", page(), re.MULTILINE)
    return [System(ROOT / path, name, dict(re.findall(r"`(\w+)=([^`]+)`", text))) for path, name, text in rows]


def page() -> str:
    return (ROOT / "docs" / "systems.md").read_text()


SYSTEMS = systems()
each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.path.stem)


def test_every_real_spec_is_in_the_table() -> None:
    assert [system.path for system in SYSTEMS] == REAL


@each_system
def test_real_specs_are_valid_and_planned_without_diagnostics(system: System) -> None:
    facts = machine.load(system.machine)
    found = validate(read_file(system.path), facts)
    assert not found.diagnostics
    assert found.geometry
    plan = planner.plan(found.geometry, facts)
    assert all(plan.steps_by_process.values())


@pytest.mark.parametrize(
    "system", [each for each in SYSTEMS if not each.several_processes], ids=lambda system: system.path.stem
)
def test_real_specs_with_small_settings_build_and_leave_nothing(system: System) -> None:
    """States are rehearsed, where there are any."""
    facts = machine.load(system.machine)
    made = run_request(system.path, facts, settings=system.settings)
    done = run(replace(made, rehearse=True), facts)
    assert done.report.outcome == "ok", done.report
    assert done.ledger.empty


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_specs_are_short_and_name_their_source(path: Path) -> None:
    """Repository and commit, in the comment at the top."""
    lines = path.read_text().splitlines()
    written = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(written) <= MOST_LINES
    comment = "\n".join(lines[: lines.index("memtopo: 1")])
    assert re.search(r"^# Source: [\w-]+/[\w-]+\b", comment, re.MULTILINE)
    assert re.search(r"\([0-9a-f]{12}\)", comment)
