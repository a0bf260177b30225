"""The addresses of a report's ranges as a map wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memtopo.output.diagram.model import ProcessDiagram
from memtopo.output.map import Addresses
from memtopo.plans.report import Placed, Report


def addresses(report: Report) -> Addresses:
    """Where the ranges of a run's picture were, as far as its layout stood."""
    picture = report.plan.picture
    if picture is None:
        return {}
    found: dict[tuple[str, str], int | None] = {}
    for shown in picture.ranges:
        if (at := _address(report.placed, shown.first)) is not None:
            found["", shown.first] = at
    reports = {each.name: each.placed for each in report.processes}
    for process in picture.processes:
        found |= _together(process, reports)
    return found


def _together(process: ProcessDiagram, reports: Mapping[str, Sequence[Placed]]) -> Addresses:
    """The addresses that all processes of one picture have in common, and None where they have none."""
    found: dict[tuple[str, str], int | None] = {}
    for shown in process.picture.ranges:
        told = {_address(reports.get(label, ()), shown.first) for label in _labels(process)}
        if None not in told:
            found[process.first, shown.first] = told.pop() if len(told) == 1 else None
    return found


def _labels(process: ProcessDiagram) -> Iterator[str]:
    entry, _, number = process.first.partition(".")
    for turn in range(process.count):
        yield f"{entry}.{int(number) + turn * process.step}" if number else entry


def _address(placed: Sequence[Placed], label: str) -> int | None:
    entry, _, number = label.partition(".")
    for run in placed:
        first, _, start = run.first.partition(".")
        if entry == first and bool(number) == bool(start):
            turn = int(number or 0) - int(start or 0)
            if 0 <= turn < run.count:
                return run.address + turn * run.step
    return None
