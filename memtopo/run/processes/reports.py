"""The reports of several processes as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from memtopo.plans.report import (
    Checks,
    Difference,
    Failure,
    Leak,
    Left,
    PhaseTime,
    ProcessReport,
    Rate,
    Report,
    Tally,
)
from memtopo.run.apply import Job, remarks
from memtopo.run.counting import SHOWN
from memtopo.run.processes.worker_process import Member


def merged(job: Job, members: Mapping[str, Member], times: Sequence[PhaseTime], interrupted: int) -> Report:
    """One report of a run: it went as well as it did in the process where it went worst.

    Among `members`, whoever was the first that could not go on stands first.
    """
    reports = {label: member.report for label, member in members.items() if member.report}
    leaks = tuple(replace(leak, what=f"{label}: {leak.what}") for label, each in reports.items() for leak in each.leaks)
    failure = _failure(members)
    different = sum(each.checks.different for each in reports.values() if each.checks)
    outcome, exit_code = _outcome(members, failure, leaks, different, interrupted)
    return Report(
        name=job.plan.name,
        spec=job.spec,
        machine=job.machine,
        outcome=outcome,
        exit_code=exit_code,
        plan=job.plan.summary(job.picture, job.warnings),
        times=tuple(times),
        checks=_checks(reports),
        failure=None if interrupted else failure,
        leaks=leaks,
        left=_left([each.left for each in reports.values() if each.left]),
        notes=(*remarks(job), *_notes(members)),
        processes=tuple(_process(members[label], failed=outcome != "ok") for label in job.geometry.processes),
        check=job.check,
    )


def _outcome(
    members: Mapping[str, Member], failure: Failure | None, leaks: Sequence[Leak], different: int, interrupted: int
) -> tuple[str, int]:
    if leaks:
        return "leaked", 5
    if interrupted:
        return "interrupted", 128 + interrupted
    if different:
        return "different", 6
    if failure:
        codes = [member.exit_code for member in members.values() if member.failed and not member.report]
        codes += [member.report.exit_code for member in members.values() if member.report and member.report.failure]
        return "failed", next((code for code in codes if code in {70, 3}), 4)
    return "ok", 0


def _failure(members: Mapping[str, Member]) -> Failure | None:
    """What went wrong: first told is whoever was the first that could not go on."""
    for member in members.values():
        if found := _own_failure(member):
            return found
    return None


def _own_failure(member: Member) -> Failure | None:
    step = f"{member.label}: {member.doing}"
    if member.lost:
        meant = "its memory went with it; the others were told, and took down what they had built"
        return Failure(step, f"process {member.label} {member.lost}", meant)
    if member.report and member.report.failure:
        return replace(member.report.failure, step=f"{member.label}: {member.report.failure.step}")
    if member.failed and not member.report:
        return Failure(step, member.failed, hint=member.hint)
    if member.failed:
        return Failure(step, f"process {member.label} was asked to stop, and took down; so did the others")
    return None


def _process(member: Member, *, failed: bool) -> ProcessReport:
    if member.report is None:
        return ProcessReport(member.label, member.process.pid, "died" if member.lost else "failed", member.lost)
    report = member.report
    # What one process did is not worth much where another could not.
    outcome = "taken down" if report.outcome == "interrupted" or (report.outcome == "ok" and failed) else report.outcome
    return ProcessReport(
        member.label, member.process.pid, outcome, None, report.checks, report.failure, report.leaks, report.left,
        report.times, report.placed,
    )  # fmt: skip


def _checks(reports: Mapping[str, Report]) -> Checks | None:
    found = {label: report.checks for label, report in reports.items() if report.checks}
    return checks_of(found) if found else None


def checks_of(found: Mapping[str, Checks]) -> Checks:
    """What was looked at in several processes, by label, as one."""
    tallies: dict[str, Tally] = {}
    for tally in (tally for checks in found.values() for tally in checks.tallies):
        before = tallies.get(tally.aspect, Tally(tally.aspect, 0, 0))
        reasons = dict.fromkeys(why for why in (before.why_not, tally.why_not) if why)
        tallies[tally.aspect] = Tally(
            tally.aspect,
            before.looked_at + tally.looked_at,
            before.as_declared + tally.as_declared,
            before.not_checked + tally.not_checked,
            "; ".join(reasons) or None,
        )
    differences = tuple(_differences(found))[:SHOWN]
    different = sum(checks.different for checks in found.values())
    return Checks(tuple(tallies.values()), differences, different, tuple(_rates(found)))


def _rates(found: Mapping[str, Checks]) -> Iterator[Rate]:
    """What the processes did one beside the other, each as its GPUs did it, added up."""
    total: dict[tuple[str, str, str], tuple[int, float]] = {}
    for rate in (rate for checks in found.values() for rate in checks.rates):
        key = rate.verb, rate.device, rate.memory
        size, seconds = total.get(key, (0, 0.0))
        total[key] = size + rate.bytes, seconds + rate.seconds
    return (Rate(*key, size, seconds) for key, (size, seconds) in total.items())


def _differences(found: Mapping[str, Checks]) -> Iterator[Difference]:
    for label, checks in found.items():
        for each in checks.differences:
            yield replace(each, subject=f"{label}: {each.subject}")


def _left(found: Sequence[Left]) -> Left | None:
    """What all processes have open together; of each device's memory what the first one saw."""
    if not found:
        return None
    held = [left.fds_held for left in found if left.fds_held is not None]
    memory = {device.device: device for left in reversed(found) for device in left.memory}
    return Left(
        _sum(left.ledger_before for left in found),
        _sum(left.ledger_held for left in found),
        _sum(left.ledger_after for left in found),
        sum(left.fds_before for left in found),
        sum(held) if held else None,
        sum(left.fds_after for left in found),
        tuple(memory[name] for name in sorted(memory)),
    )


def _sum(accounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for account in accounts:
        for kind, count in account.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _notes(members: Mapping[str, Member]) -> Iterator[str]:
    told: set[str] = set()
    for member in members.values():
        for note in member.report.notes if member.report else ():
            if note not in told:
                told.add(note)
                yield f"{member.label}: {note}"
