"""Reports of several processes: what each contributes to the report of the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.plans.report import Checks, Difference, Rate, Tally
from memtopo.run import processes
from memtopo.run.reports import merged_checks
from memtopo.session.request import HoldResult
from tests.helpers.specs import ensemble

HERE = Path(__file__).parent
SPEC = """
processes:
  server:
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    ranges: {w: {size: 4MiB}}
    map: {w: w}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    chunks: {o: {location: gpu1, size: 2MiB, count: 2}}
    ranges: {v: {size: 4MiB}, o: {size: 4MiB}}
    imports: {w: {from: server.w}}
    map: {v: w, o: o}
    access: {v: {gpu0: r}, o: {gpu1: rw}}
"""


def test_checks_of_every_process_are_added() -> None:
    first = Checks(
        (Tally("bytes", 3, 2, 1, "one reason"), Tally("hole", 1, 1)),
        (Difference("bytes", "c", "1", "2", ("chunks", "c")),),
        1,
        (Rate("fill", "gpu0", "gpu0", 10, 1.0),),
    )
    second = Checks(
        (Tally("bytes", 5, 3, 2, "another"), Tally("access", 2, 2, 4, "a third")),
        (Difference("bytes", "d", "3", "4", ("chunks", "d")), Difference("bytes", "e", "5", "6", ("chunks", "e"))),
        2,
        (Rate("fill", "gpu0", "gpu0", 30, 2.0),),
    )
    assert merged_checks({"a": first, "b": second}) == Checks(
        (Tally("bytes", 8, 5, 3, "one reason; another"), Tally("hole", 1, 1), Tally("access", 2, 2, 4, "a third")),
        (
            Difference("bytes", "a: c", "1", "2", ("chunks", "c")),
            Difference("bytes", "b: d", "3", "4", ("chunks", "d")),
            Difference("bytes", "b: e", "5", "6", ("chunks", "e")),
        ),
        3,
        (Rate("fill", "gpu0", "gpu0", 40, 3.0),),
    )


@pytest.mark.parametrize(
    ("process", "fault", "outcome", "named"),
    [
        ("reader", "UnmapsNothing", ("leaked", 5), "reader: range o"),
        ("server", "ExportsAnotherChunk", ("different", 6), "reader: w.0 in v at 0x0 by gpu0"),
    ],
)
def test_a_leak_or_difference_of_any_process_is_of_the_run(
    process: str, fault: str, outcome: tuple[str, int], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout that differs is not held."""
    monkeypatch.setenv("MEMTOPO_FAULT", f"{process}={fault}")
    worker = (sys.executable, "-P", str(HERE / "faulty_worker.py"))
    held: list[str] = []

    def hold(_: object) -> HoldResult:
        held.append("held")
        return HoldResult()

    report = processes.apply(ensemble(SPEC, machine.load("h200x2"), worker=worker), hold=hold)
    assert (report.outcome, report.exit_code) == outcome
    assert report.checks
    assert named in [*(leak.what for leak in report.leaks), *(each.subject for each in report.checks.differences)]
    assert held == ([] if report.checks.different else ["held"])
