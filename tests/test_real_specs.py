"""Layouts of real systems: each spec of specs/real is what docs/systems.md says about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import planner
from memtopo.kinds.chunks.steps import ImportChunk
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.ranges.elastic_steps import OpenRange
from memtopo.language import read_file
from memtopo.machine import Machine
from memtopo.planner import Plan
from memtopo.rules import validate
from memtopo.run import processes
from tests.helpers.machines import with_multicast
from tests.helpers.specs import ROOT, ensemble, machine_of, run, run_request, steps_of

REAL = sorted((ROOT / "specs" / "real").glob("*.yaml"))
MOST_LINES = 40
GIB = 1 << 30


@dataclass(frozen=True)
class System:
    """A line of the table: the spec, and settings with which it is small."""

    path: Path
    settings: Mapping[str, str]

    @property
    def machine(self) -> Machine:
        return machine_of(self.path)

    @property
    def several_processes(self) -> bool:
        return "\nprocesses:" in self.path.read_text()


def systems() -> list[System]:
    rows = re.findall(r"^\| \[\S+\]\(\.\./(\S+)\) \| [^|]+ \| ([^|]+) \|$", page(), re.MULTILINE)
    return [System(ROOT / path, dict(re.findall(r"`(\w+)=([^`]+)`", text))) for path, text in rows]


def facts_of(system: System) -> Machine:
    """Its machine; for one with multicast objects, as if a trial of these had worked on it (fact 87)."""
    return with_multicast(system.machine) if stem(system) in PLANNED_ONLY else system.machine


def stem(system: System) -> str:
    return system.path.stem


def page() -> str:
    return (ROOT / "docs" / "systems.md").read_text()


def plan_of(name: str) -> Plan:
    """Plan of a spec as it is, on its machine."""
    (system,) = (each for each in SYSTEMS if stem(each) == name)
    found = validate(read_file(system.path), system.machine).geometry
    assert found
    return planner.plan(found, system.machine)


def parts(plan: Plan, range_: str) -> list[tuple[int, str]]:
    """Offset of each import that is mapped in a range, and the process that exports it."""
    owners = {step.label: step.source.holder for step in steps_of(plan, ImportChunk)}
    return [(step.offset, owners[step.chunk]) for step in steps_of(plan, MapChunk) if step.range == range_]


SYSTEMS = systems()
SINGLE = [system for system in SYSTEMS if not system.several_processes]
ENSEMBLES = [system for system in SYSTEMS if system.several_processes]
PLANNED_ONLY = ("flashinfer", "nccl-nvls", "pytorch-symmetric-memory")
SAMPLE = ("nccl", "nvshmem", "pytorch-symmetric-memory")
"""Specs of several processes that every run of the tests builds; the others take as long, a second each."""


def test_every_real_spec_is_in_the_table() -> None:
    assert [system.path for system in SYSTEMS] == REAL


@pytest.mark.parametrize("system", SYSTEMS, ids=stem)
def test_real_specs_are_valid_and_planned_without_diagnostics(system: System) -> None:
    found = validate(read_file(system.path), system.machine)
    assert not found.diagnostics
    assert found.geometry
    plan = planner.plan(found.geometry, system.machine)
    assert all(plan.steps_by_process.values())


@pytest.mark.parametrize("system", SINGLE, ids=stem)
def test_real_specs_with_small_settings_build_and_leave_nothing(system: System) -> None:
    """States are rehearsed, where there are any."""
    facts = facts_of(system)
    made = run_request(system.path, facts, settings=system.settings)
    done = run(replace(made, rehearse=True), facts)
    assert done.report.outcome == "ok", done.report
    assert done.ledger.empty


@pytest.mark.parametrize(
    "system",
    [system if stem(system) in SAMPLE else pytest.param(system, marks=pytest.mark.exhaustive) for system in ENSEMBLES],
    ids=stem,
)
def test_real_multi_process_specs_with_small_settings_build_and_leave_nothing(system: System) -> None:
    whole = ensemble(system.path, facts_of(system), settings=system.settings)
    report = processes.apply(replace(whole, request=replace(whole.request, rehearse=True)))
    assert report.outcome == "ok", report
    assert report.left
    assert not any(report.left.ledger_after.values())


def test_kvcached_has_71488_slots() -> None:
    """32 layers of 2 x 1117 pages, each with a mapping of the zero page."""
    assert sum(step.calls for step in steps_of(plan_of("kvcached"), OpenRange)) == 71_488


@pytest.mark.parametrize("rank", range(4))
def test_parts_of_nvshmem_begin_with_the_own_one(rank: int) -> None:
    """256 GiB after it is that of the next PE, and so on around."""
    plan = plan_of("nvshmem").processes[f"pe.{rank}"]
    assert parts(plan, "heap") == [(index * 256 * GIB, f"pe.{(rank + index) % 4}") for index in range(4)]


@pytest.mark.parametrize("rank", range(4))
def test_windows_of_nccl_are_in_the_order_of_ranks_in_every_rank(rank: int) -> None:
    """The stride is the memory of an H200, rounded up to 4 GiB."""
    plan = plan_of("nccl").processes[f"rank.{rank}"]
    assert parts(plan, "flat") == [(index * 140 * GIB, f"rank.{index}") for index in range(4)]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_specs_are_short_and_name_their_source(path: Path) -> None:
    """Repository and commit, in the comment at the top."""
    lines = path.read_text().splitlines()
    written = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(written) <= MOST_LINES
    comment = "\n".join(lines[: lines.index("memtopo: 1")])
    assert re.search(r"^# Source: [\w-]+/[\w-]+\b", comment, re.MULTILINE)
    assert re.search(r"\([0-9a-f]{12}\)", comment)
