"""Every spec that comes with memtopo works, on a machine that was recorded on hardware."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.kinds import KINDS
from memtopo.run import processes
from tests.helpers.command_line import run_memtopo
from tests.helpers.machines import with_multicast
from tests.helpers.samples import in_sample
from tests.helpers.specs import ENSEMBLES, EVERY_SPEC, PLANNED_ONLY, ROOT, SPECS, ensemble, machine_of, run, run_request


def test_one_command_validates_every_spec_on_the_machines_that_it_names() -> None:
    """Without a GPU; what does not fit one of them is not said to be for it."""
    done = run_memtopo("validate", "specs", "--strict", "--json")
    assert (done.status, done.err) == (0, "")
    machines = {each["file"]: each["machine"] for each in done.document["results"]}
    assert {*machines} == {str(path.relative_to(ROOT)) for path in (ROOT / "specs").rglob("*.yaml")}
    assert {*machines.values()} == {*machine.shipped()}


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_specs_build_verify_and_leave_nothing(path: Path) -> None:
    """On the first machine that they name, without diagnostics."""
    facts = machine_of(path)
    done = run(run_request(path, facts), facts)
    assert done.report.outcome == "ok", done.report
    assert done.ledger.empty
    assert done.report.checks
    assert done.report.checks.tallies


@pytest.mark.parametrize("path", PLANNED_ONLY, ids=lambda path: path.stem)
def test_specs_that_are_planned_only_build_where_a_trial_worked(path: Path) -> None:
    """On no shipped machine: this one is as if it had."""
    facts = with_multicast(machine_of(path))
    done = run(run_request(path, facts, "full"), facts)
    assert done.report.outcome == "ok", done.report
    assert done.ledger.empty


@pytest.mark.parametrize("path", ENSEMBLES, ids=lambda path: path.stem)
def test_shipped_multi_process_specs_build_verify_and_leave_nothing(path: Path) -> None:
    """States are rehearsed, where there are any."""
    whole = ensemble(path, machine_of(path))
    report = processes.apply(replace(whole, request=replace(whole.request, rehearse=True)))
    assert report.outcome == "ok", report
    assert {each.outcome for each in report.processes} == {"ok"}
    assert report.checks
    for tally in report.checks.tallies:
        assert tally.looked_at
        assert not tally.not_checked or "--check full" in str(tally.why_not), tally
    assert report.left
    assert not any(report.left.ledger_after.values())
    assert report.left.fds_after == report.left.fds_before


def test_a_full_rehearsal_of_several_processes_compares_fingerprints() -> None:
    """Of the server's weights, which stay, and return; its line has the number of switches."""
    whole = ensemble(ROOT / "specs" / "tensor-parallel-sleep.yaml", machine.load("h200x2"))
    report = processes.apply(replace(whole, request=replace(whole.request, rehearse=True, check="full")))
    assert report.outcome == "ok", report
    assert report.checks
    (tally,) = (tally for tally in report.checks.tallies if tally.aspect == "fingerprint")
    assert tally.as_declared == tally.looked_at > 0
    (time,) = (time for time in report.times if time.phase == "rehearse")
    assert time.steps == 2 * 2 + 2 * 3


def test_every_section_is_in_a_spec_of_the_sample() -> None:
    """With one process, and with several."""
    for paths in (ENSEMBLES, [*SPECS, *PLANNED_ONLY]):
        every, sample = (
            {*re.findall(r"^ *(\w+):", text, re.MULTILINE)} for text in map(text_of, (paths, in_sample(paths)))
        )
        assert (every - sample) & {kind.section for kind in KINDS} == set()


def text_of(paths: list[Path]) -> str:
    return "\n".join(path.read_text() for path in paths)


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_shipped_specs_begin_with_an_explanation(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith((".", ":", ",")) or len(first) > 60
