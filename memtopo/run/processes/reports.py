"""Merging of the reports of a run in workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from memtopo.common.errors import Exit, outcome
from memtopo.executor import StepFailed
from memtopo.plans.report import DeviceMemory, Failure, Left, PhaseTime, ProcessReport, Report
from memtopo.run.hints import failure as failure_of
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.run.reports import merged_checks, report_on, sum_of_left
from memtopo.session.request import RunRequest


def merged_report(
    request: RunRequest,
    workers: Mapping[str, WorkerProcess],
    times: Sequence[PhaseTime],
    interrupted: int,
    failed: StepFailed | None = None,
) -> Report:
    """Merge the reports of a run; its outcome is the worst of all processes.

    The first of `workers` is the one that failed or died first, if any did. `failed` is a failure of none of them.
    """
    reports = {label: worker.report for label, worker in workers.items() if worker.report}
    leaks = tuple(replace(leak, what=f"{label}: {leak.what}") for label, each in reports.items() for leak in each.leaks)
    failure = next((found for worker in workers.values() if (found := _failure(worker))), None)
    checks = {label: each.checks for label, each in reports.items() if each.checks}
    merged = merged_checks(checks) if checks else None
    codes = [*_statuses(workers.values()), Exit.FAILED] if failure else ()
    ending = outcome(leaks, signal=interrupted or None, as_declared=not (merged and merged.different), codes=codes)
    report = report_on(
        request,
        ending,
        times=tuple(times),
        checks=merged,
        failure=None if interrupted else failure,
        leaks=leaks,
        left=_left([reports[label] for label in request.geometry.processes if label in reports]),
        notes=(*request.notes(), *_notes(workers)),
        processes=tuple(
            _process(workers[label], failed=ending[1] != 0) for label in request.geometry.processes if label in workers
        ),
    )
    if failed is None or ending[1]:
        return report
    code = getattr(failed.error, "exit_code", Exit.FAILED)
    return replace(report, outcome="failed", exit_code=code, failure=failure_of(failed, request))


def _statuses(workers: Iterable[WorkerProcess]) -> Iterator[int]:
    """Exit statuses of the processes that failed."""
    for worker in workers:
        if worker.failed and not worker.report:
            yield worker.exit_code
        if worker.report and worker.report.failure:
            yield worker.report.exit_code


def _failure(worker: WorkerProcess) -> Failure | None:
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


def _notes(workers: Mapping[str, WorkerProcess]) -> Iterator[str]:
    seen: set[str] = set()
    for worker in workers.values():
        for note in worker.report.notes if worker.report else ():
            if note not in seen:
                seen.add(note)
                yield f"{worker.label}: {note}"
