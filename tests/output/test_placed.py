"""Addresses of ranges in the report of a layout and in its drawing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.common.units import MiB
from memtopo.geometry.diagram import Diagram, ProcessDiagram, RangeDiagram
from memtopo.kinds.layout import Reservation
from memtopo.output import report as rendering
from memtopo.output.diagram.build import build_diagram
from memtopo.output.report import addresses
from memtopo.plans.folding import placed
from memtopo.plans.report import Placed, ProcessReport, Report
from memtopo.run import processes
from tests.helpers.console import written_at_width
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT, ensemble, run, run_request

SPEC = (
    "ranges: {kv: {size: 2MiB}, r: {size: 2MiB, count: 3}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 4}}\n"
    "map: {kv: [c.0], r: [c.1:4]}\naccess: {kv: {gpu0: rw}, r: {gpu0: rw}}"
)


AREA = "c.0@host:0"


def report_with_picture(spec: str = SPEC) -> Report:
    made = run_request(spec, invented(1))
    made = replace(made, picture=build_diagram(made.geometry, invented(1)))
    return run(made, invented(1)).report


def report_text(report: Report, monkeypatch: pytest.MonkeyPatch) -> str:
    return written_at_width(rendering.text_page(report), 100, monkeypatch)


@pytest.mark.parametrize(
    ("addresses", "runs"),
    [
        ({"kv": 5}, [Placed("kv", "kv", 1, 5, 0)]),
        ({"r.0": 10, "r.1": 14, "r.2": 18}, [Placed("r.0", "r.2", 3, 10, 4)]),
        ({"r.0": 10, "r.1": 6, "r.2": 2}, [Placed("r.0", "r.2", 3, 10, -4)]),
        ({"r.0": 10, "r.1": 14, "r.2": 19}, [Placed("r.0", "r.1", 2, 10, 4), Placed("r.2", "r.2", 1, 19, 0)]),
        ({"r.0": 10, "s.1": 14}, [Placed("r.0", "r.0", 1, 10, 0), Placed("s.1", "s.1", 1, 14, 0)]),
        ({"r.0": 10, "r": 14}, [Placed("r.0", "r.0", 1, 10, 0), Placed("r", "r", 1, 14, 0)]),
        ({"c.0": 10, "c.0@host:0": 14}, [Placed("c.0", "c.0", 1, 10, 0), Placed(AREA, AREA, 1, 14, 0)]),
        ({"c.0@host:0": 10, "c.1": 14}, [Placed(AREA, AREA, 1, 10, 0), Placed("c.1", "c.1", 1, 14, 0)]),
        ({}, []),
    ],
)
def test_equally_spaced_addresses_of_an_entry_are_folded(addresses: dict[str, int], runs: list[Placed]) -> None:
    assert list(placed({label: Reservation(address, 4) for label, address in addresses.items()})) == runs


def test_a_range_is_not_taken_for_the_area_of_a_chunk_of_its_name() -> None:
    spec = (
        "ranges: {c: {size: 2MiB, count: 2}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 2}}\n"
        "map: {c: [{chunk: c, each: 1}]}\naccess: {c: {gpu0: rw}}\nstates: {s: {offload: {c.0: host:0}}}"
    )
    report = report_with_picture(spec)
    assert [each.first for each in report.placed] == ["c.0", AREA]
    assert addresses(report)["", "c.0"] == report.placed[0].address
    assert addresses(replace(report, placed=report.placed[::-1])) == addresses(report)


def test_report_and_drawing_have_the_addresses_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_with_picture()
    kv, r = report.placed
    assert (kv.first, kv.count, r.first, r.last, r.count, r.step) == ("kv", 1, "r.0", "r.2", 3, 2 * MiB)
    text = report_text(report, monkeypatch)
    assert f"kv  2 MiB  at {kv.address:#x}" in text
    assert f"r.0 … r.2  3 × 2 MiB  from {r.address:#x}" in text.replace("r.0 … 2", "r.0 … r.2")


def test_a_report_without_a_layout_has_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    report = replace(report_with_picture(), placed=())
    assert "0x" not in report_text(report, monkeypatch)


def test_reports_of_processes_have_their_own_addresses() -> None:
    machine = invented(2)
    made = ensemble(ROOT / "specs" / "hand-over.yaml", machine, check="none")
    report = processes.apply(made)
    assert (report.outcome, report.placed) == ("ok", ())
    assert [[run.first for run in each.placed] for each in report.processes] == [["kv"], ["kv"]]


def together(*addresses: int) -> Report:
    """A report of processes that look alike, each with one range at an address."""
    shown = RangeDiagram("kv", "kv", 1, 8, 0, (), ())
    alike = ProcessDiagram("p.1", f"p.{len(addresses) * 2 - 1}", len(addresses), 2, Diagram((shown,), ()), ())
    base = report_with_picture()
    each = tuple(
        ProcessReport(f"p.{turn * 2 + 1}", 1, "ok", placed=(Placed("kv", "kv", 1, at, 0),) if at else ())
        for turn, at in enumerate(addresses)
    )
    return replace(base, plan=replace(base.plan, picture=Diagram((), (), processes=(alike,))), processes=each)


def test_equal_processes_share_an_address_only_if_it_is_the_same() -> None:
    assert addresses(together(16, 16, 16)) == {("p.1", "kv"): 16}
    assert addresses(together(16, 32, 16)) == {("p.1", "kv"): None}
    assert addresses(together(16, 0)) == {}, "one of them never stood"
