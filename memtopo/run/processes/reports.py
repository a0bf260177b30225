"""Merging of the reports of a multi-process run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from memtopo.common.outcomes import Exit, outcome
from memtopo.plans.report import (
    Checks,
    DeviceMemory,
    Difference,
    Failure,
    Left,
    PhaseTime,
    ProcessReport,
    Rate,
    Report,
    Tally,
)
from memtopo.run.findings import MAX_DIFFERENCES
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.session.request import RunRequest


def merged_report(
    request: RunRequest, workers: Mapping[str, WorkerProcess], times: Sequence[PhaseTime], interrupted: int
) -> Report:
    """Merge the reports of a run; its outcome is the worst of all processes.

    The first of `workers` is the one that failed or died first, if any did.
    """
    reports = {label: worker.report for label, worker in workers.items() if worker.report}
    leaks = tuple(replace(leak, what=f"{label}: {leak.what}") for label, each in reports.items() for leak in each.leaks)
    failure = _failure(workers)
    different = sum(each.checks.different for each in reports.values() if each.checks)
    codes = [*_statuses(workers.values()), Exit.FAILED] if failure else ()
    word, status = outcome(leaks, signal=interrupted or None, as_declared=not different, codes=codes)
    return Report(
        name=request.plan.name,
        spec=request.spec,
        machine=request.machine,
        outcome=word,
        exit_code=status,
        plan=request.summary(),
        times=tuple(times),
        checks=_checks(reports),
        failure=None if interrupted else failure,
        leaks=leaks,
        left=_left([reports[label] for label in request.geometry.processes if label in reports]),
        notes=(*request.notes(), *_notes(workers)),
        processes=tuple(
            _process(workers[label], failed=word != "ok") for label in request.geometry.processes if label in workers
        ),
        check=request.check,
        started=request.started,
    )


def _statuses(workers: Iterable[WorkerProcess]) -> Iterator[int]:
    """Exit statuses of the processes that failed."""
    for worker in workers:
        if worker.failed and not worker.report:
            yield worker.exit_code
        if worker.report and worker.report.failure:
            yield worker.report.exit_code


def _failure(workers: Mapping[str, WorkerProcess]) -> Failure | None:
    """Failure of the first worker that has one."""
    for worker in workers.values():
        if found := _own_failure(worker):
            return found
    return None


def _own_failure(worker: WorkerProcess) -> Failure | None:
    step = f"{worker.label}: {worker.activity}"
    if worker.death:
        meaning = "its memory is gone with it; the others were stopped, and took down what they had built"
        return Failure(step, f"process {worker.label} {worker.death}", meaning)
    if worker.report and worker.report.failure:
        return replace(worker.report.failure, step=f"{worker.label}: {worker.report.failure.step}")
    if worker.failed and not worker.report:
        return Failure(step, worker.failed, hint=worker.hint)
    if worker.failed:
        return Failure(step, f"process {worker.label} was interrupted, and took down, as did the others")
    return None


def _process(worker: WorkerProcess, *, failed: bool) -> ProcessReport:
    if worker.report is None:
        return ProcessReport(worker.label, worker.process.pid, "died" if worker.death else "failed", worker.death)
    report = worker.report
    # Without the failed process, the part of another one is not a success.
    outcome = "taken down" if report.outcome == "interrupted" or (report.outcome == "ok" and failed) else report.outcome
    return ProcessReport(
        worker.label, worker.process.pid, outcome, None, report.checks, report.failure, report.leaks, report.left,
        report.times, report.placed,
    )  # fmt: skip


def _checks(reports: Mapping[str, Report]) -> Checks | None:
    found = {label: report.checks for label, report in reports.items() if report.checks}
    return merged_checks(found) if found else None


def merged_checks(found: Mapping[str, Checks]) -> Checks:
    """Merge the checks of several processes, by label."""
    named = [replace(checks, differences=tuple(_differences(label, checks))) for label, checks in found.items()]
    return sum_of_checks(named) or Checks((), (), 0)


def sum_of_checks(found: Sequence[Checks]) -> Checks | None:
    """Sums of some checks, whose differences name their processes; None without any."""
    if not found:
        return None
    tallies: dict[str, Tally] = {}
    for tally in (tally for checks in found for tally in checks.tallies):
        before = tallies.get(tally.aspect, Tally(tally.aspect, 0, 0))
        reasons = dict.fromkeys(why for why in (before.why_not, tally.why_not) if why)
        tallies[tally.aspect] = Tally(
            tally.aspect,
            before.looked_at + tally.looked_at,
            before.as_declared + tally.as_declared,
            before.not_checked + tally.not_checked,
            "; ".join(reasons) or None,
        )
    differences = tuple(each for checks in found for each in checks.differences)[:MAX_DIFFERENCES]
    different = sum(checks.different for checks in found)
    return Checks(tuple(tallies.values()), differences, different, tuple(_rates(found)))


def _rates(found: Sequence[Checks]) -> Iterator[Rate]:
    """Sums of the bytes and seconds of all processes, for each device and memory."""
    total: dict[tuple[str, str, str], tuple[int, float]] = {}
    for rate in (rate for checks in found for rate in checks.rates):
        key = rate.verb, rate.device, rate.memory
        size, seconds = total.get(key, (0, 0.0))
        total[key] = size + rate.bytes, seconds + rate.seconds
    return (Rate(*key, size, seconds) for key, (size, seconds) in total.items())


def _differences(label: str, checks: Checks) -> Iterator[Difference]:
    return (replace(each, subject=f"{label}: {each.subject}") for each in checks.differences)


def _left(reports: Sequence[Report]) -> Left | None:
    """Sums over all processes in the order of the spec; each of them has simulated GPUs of its own."""
    found = [each.left for each in reports if each.left]
    total = sum_of_left(found)
    if total is None or not reports[0].machine.simulated:
        return total
    memory = [device for left in found for device in left.memory]
    return replace(total, memory=tuple(_with_others(each, memory) for each in total.memory))


def _with_others(device: DeviceMemory, memory: Sequence[DeviceMemory]) -> DeviceMemory:
    """Memory of a GPU from which all processes take what each takes from its own."""
    every = [each for each in memory if each.device == device.device]
    taken = [each.before - each.held for each in every if each.held is not None]
    held = device.before - sum(taken) if taken else None
    return replace(device, held=held, after=device.before - sum(each.before - each.after for each in every))


def sum_of_left(found: Sequence[Left]) -> Left | None:
    """Sums over all processes; of each device's memory, which they share, the numbers of the first process."""
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


def _notes(workers: Mapping[str, WorkerProcess]) -> Iterator[str]:
    seen: set[str] = set()
    for worker in workers.values():
        for note in worker.report.notes if worker.report else ():
            if note not in seen:
                seen.add(note)
                yield f"{worker.label}: {note}"
