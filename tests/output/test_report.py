from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.common.errors import Unavailable
from memtopo.machine import MachineLine
from memtopo.output import report as rendering
from memtopo.output.blocks import Page, Pairs, Section, Table, Toned
from memtopo.plans.report import (
    Checks,
    DeviceMemory,
    Difference,
    Failure,
    Leak,
    Left,
    NodeReport,
    PhaseTime,
    Placed,
    PlanSummary,
    ProcessReport,
    Report,
    Row,
    Tally,
)
from tests.helpers.console import written_to_pipe

MIB, GIB = 1 << 20, 1 << 30
CLEAN = Left(
    {"chunks": 0, "mappings": 0},
    {"chunks": 8000, "mappings": 8000},
    {"chunks": 0, "mappings": 0},
    12,
    14,
    12,
    (
        DeviceMemory("gpu0", 139 * GIB, 131 * GIB, 139 * GIB),
        DeviceMemory("gpu1", 139 * GIB, 131 * GIB, 139 * GIB - MIB),
    ),
)
REPORT = Report(
    "quickstart",
    "specs/quickstart.yaml",
    MachineLine("h200x2", simulated=True, devices=("NVIDIA H200", "NVIDIA H200"), driver="CUDA 13.0"),
    "ok",
    0,
    PlanSummary(
        "quickstart",
        (Row("map", "map", "cuMemMap", "page.0", "page.7999", 8000, 2 * MIB, ("kv",), ()),),
        {"gpu0": 16000 * MIB},
        16000 * MIB,
        8000,
        8000,
    ),
    (PhaseTime("create", 8000, 0.1234), PhaseTime("map", 8000, 0.0000123)),
    Checks(
        (
            Tally("access", 16000, 16000),
            Tally("bytes", 0, 0, 8000, "imported memory is never written"),
            Tally("forbidden access", 3, 3, 1, "it ends the process that tries"),
        ),
        (),
        0,
    ),
    left=CLEAN,
    notes=("free memory of gpu1 differs, and other processes use it",),
)
LEAK = Leak("mapping of page.3 in kv", "cuMemUnmap: CUDA_ERROR_INVALID_VALUE", ("range kv",), (), "spec.yaml:9:3")
FAILURE = Failure(
    "map page.7 into kv", "cuMemMap: CUDA_ERROR_INVALID_VALUE", "the range is taken", (), "spec.yaml:9:3", "free it"
)


def report_text(report: Report) -> str:
    return written_to_pipe(rendering.text_page(report))


def last_line(report: Report) -> str:
    return report_text(report).splitlines()[-1]


def test_report_has_machine_plan_checks_teardown_and_verdict() -> None:
    """In 80 columns."""
    assert report_text(REPORT) == (
        """\
apply  quickstart  on h200x2 (simulated)
       2 × NVIDIA H200, driver CUDA 13.0

  step  what                calls   each     total  where
  map   page.0 … page.7999  8,000  2 MiB  15.6 GiB  kv

  memory on gpu0  15.6 GiB
  address space   15.6 GiB
  steps           8,000 to build, 8,000 to take down

checked
  access            16,000 of 16,000 as declared
  bytes             8,000 not checked: imported memory is never written
  forbidden access            3 of 3 as declared
                    1 not checked: it ends the process that tries

taken down
                     before     held      after  change
  chunks                  0    8,000          0       0
  mappings                0    8,000          0       0
  file descriptors       12       14         12       0
  free on gpu0      139 GiB  131 GiB    139 GiB       0
  free on gpu1      139 GiB  131 GiB  139.0 GiB  -1 MiB

time
  phase   steps     time
  create  8,000   123 ms
  map     8,000  12.3 µs

  note: free memory of gpu1 differs, and other processes use it

ok: built, checked and taken down
"""
    )


def test_a_failure_has_step_driver_error_reason_position_and_hint() -> None:
    text = report_text(replace(REPORT, outcome="failed", checks=None, failure=FAILURE))
    assert (
        """
failed
  step    map page.7 into kv
  error   cuMemMap: CUDA_ERROR_INVALID_VALUE
  reason  the range is taken
  place   spec.yaml:9:3
  hint    free it
"""
        in text
    )


def test_leaks_have_driver_error_dependents_and_position() -> None:
    assert """
left behind
  mapping of page.3 in kv
    cuMemUnmap: CUDA_ERROR_INVALID_VALUE
    range kv stays because of it
    requested at spec.yaml:9:3
""" in report_text(replace(REPORT, outcome="leaked", leaks=(LEAK,)))


def test_differences_have_expected_and_observed_values_and_a_count() -> None:
    checks = Checks((Tally("access", 9, 6),), (Difference("access", "page.3 for gpu1", "r", "none"),), 3)
    assert """
checked
  access  6 of 9 as declared

not as declared
  aspect  of               wanted  seen
  access  page.3 for gpu1  r       none
  … and 2 more
""" in report_text(replace(REPORT, outcome="different", checks=checks))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "ok: built, checked and taken down"),
        ({"checks": None}, "ok: built and taken down; nothing was checked"),
        ({"checks": Checks((Tally("bytes", 0, 0, 8000),), (), 0)}, "ok: built and taken down; nothing was checked"),
        ({"outcome": "failed"}, "failed: everything was undone"),
        ({"outcome": "leaked", "leaks": (LEAK,)}, "failed: 2 things are left"),
        ({"outcome": "leaked", "leaks": (replace(LEAK, stays=()),)}, "failed: 1 thing is left"),
        ({"outcome": "leaked"}, "failed: something is left"),
        ({"outcome": "leaked", "left": replace(CLEAN, ledger_after={"chunks": 3})}, "failed: 3 things are left"),
        (
            {"outcome": "leaked", "leaks": (LEAK, replace(LEAK, what="mapping of page.4 in kv"))},
            "failed: 3 things are left",
        ),
        (
            {"outcome": "leaked", "leaks": (LEAK,), "left": replace(CLEAN, ledger_after={"chunks": 3, "ranges": 1})},
            "failed: 4 things are left",
        ),
        (
            {"outcome": "leaked", "left": replace(CLEAN, ledger_before={"chunks": 2}, ledger_after={"chunks": 3})},
            "failed: 1 thing is left",
        ),
        ({"outcome": "interrupted"}, "interrupted: everything was undone"),
        ({"outcome": "interrupted", "leaks": (LEAK,)}, "interrupted: 2 things are left"),
        (
            {"outcome": "different", "checks": Checks((), (), 3)},
            "different: 3 things are not as declared; everything was undone",
        ),
    ],
)
def test_last_line_of_a_report_is_the_verdict(change: dict[str, object], verdict: str) -> None:
    assert last_line(replace(REPORT, **change)) == verdict


def test_missing_parts_of_a_report_are_omitted() -> None:
    text = report_text(replace(REPORT, outcome="interrupted", times=(), checks=None, left=None, notes=()))
    assert not any(word in text for word in ("checked", "taken down", "time", "note"))


@pytest.mark.parametrize("evil", ["[red]x[/red]", "\x1b[31mx", "\x1b]0;title\x07", "\u202ex"])
def test_texts_in_a_report_inject_nothing(monkeypatch: pytest.MonkeyPatch, evil: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report = replace(
        REPORT,
        name=evil,
        machine=MachineLine(evil, simulated=False, devices=(evil,), driver=evil),
        times=(PhaseTime(evil, 1, 1.0),),
        checks=Checks((Tally(evil, 1, 0, 1, evil),), (Difference(evil, evil, evil, evil),), 1),
        failure=Failure(evil, evil, evil, (), evil, evil),
        leaks=(Leak(evil, evil, (evil,), (), evil),),
        left=replace(CLEAN, ledger_after={evil: 1}, memory=(DeviceMemory(evil, 1, 1, 1),)),
        notes=(evil,),
    )
    text = report_text(report)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert text.count(evil.translate({0x1B: "\\x1b", 7: "\\x07", 0x202E: "\\u202e"})) >= 20


CHECKED = Checks((Tally("access", 9, 6), Tally("bytes", 3, 3)), (), 3)


def test_processes_and_nodes_have_rows_with_what_they_checked_and_what_is_open() -> None:
    """Neighbours that are alike have one; of a lost one it is said how it was lost."""
    rest = replace(CLEAN, ledger_after={"chunks": 3, "mappings": 1})
    processes = (
        ProcessReport("r.0", 7, "ok", checks=CHECKED, left=CLEAN),
        ProcessReport("r.1", 8, "ok", checks=CHECKED, left=CLEAN),
        ProcessReport("w", 9, "died", "was killed by SIGKILL"),
        ProcessReport("x", 10, "leaked", left=rest),
    )
    node = NodeReport("a", "one", "lost", "its agent died", ("r.0", "w"), checks=CHECKED, left=rest)
    report = replace(REPORT, processes=processes, nodes=(node,))
    page = rendering.text_page(report, every=False)
    tables = {each.title: each.blocks[0] for each in page.sections if each.blocks}
    assert cells(tables["processes"]) == [
        ("r.0 … r.1", "2 processes", "ok", "9 of 12", "0"),
        ("w", "9", "was killed by SIGKILL", "", ""),
        ("x", "10", "leaked", "", "4"),
    ]
    assert cells(tables["nodes"]) == [("a", "one", "lost", "9 of 12", "4", "r.0, w", "its agent died")]
    every = rendering.text_page(report, every=True)
    assert [row[0] for row in cells(section(every, "processes").blocks[0])] == ["r.0", "r.1", "w", "x"]


def cells(table: object) -> list[tuple[str, ...]]:
    assert isinstance(table, Table)
    return [tuple(each.text if isinstance(each, Toned) else str(each) for each in row) for row in table.rows]


def section(page: Page, title: str) -> Section:
    return next(each for each in page.sections if each.title == title)


def test_a_page_for_a_browser_has_facts_the_slowest_processes_and_addresses() -> None:
    processes = tuple(
        ProcessReport(f"p.{n}", n, "ok", times=(PhaseTime("map", 1, n + 1.0, 0.0, n + 1.0),), placed=(placed,))
        for n, placed in enumerate([Placed("r.0", "r.2", 3, 4096, 2 * MIB)] * (rendering.MOST_LANES + 1))
    )
    times = PhaseTime("create", 1, 0.1, 0.0, 2.0), PhaseTime("map", 1, 0.1, 0.0, 1.0)
    placed = (Placed("kv", "kv", 1, 8192, 0),)
    report = replace(REPORT, started="2026-01-31T12:00:00Z", times=times, processes=processes, placed=placed)
    page = rendering.full_page(report)
    (facts,) = page.sections[0].blocks
    assert isinstance(facts, Pairs)
    assert dict(facts.rows) == {
        "exit status": "0", "started, UTC": "2026-01-31 12:00:00", "time": "2 s", "processes": "65",
        f"as declared, {REPORT.check} check": "16,003 of 16,003",
    }  # fmt: skip
    lanes = section(page, "time by process").blocks[0]
    assert isinstance(lanes, Table)
    assert [row[0] for row in lanes.rows] == [each.name for each in processes[1:]]
    assert lanes.more == 1
    assert cells(section(page, "addresses").blocks[0])[:2] == [
        ("", "kv", "0x2000", "", "1"), ("p.0", "r.0 … r.2", "0x1000", "2 MiB", "3"),
    ]  # fmt: skip


def test_differences_have_their_places_and_each_hint_once_and_are_counted_if_none_is_listed() -> None:
    row = Difference("access", "page.3", "r", "none", (), "s.yaml:1:2", "look at it")
    checks = Checks((Tally("access", 9, 6),), (row, replace(row, subject="page.4", place=None)), 3)
    table, *hints = section(rendering.text_page(replace(REPORT, checks=checks)), "not as declared").blocks
    assert [each[-1] for each in cells(table)] == ["s.yaml:1:2", ""]
    assert hints == ["  hint: look at it"]
    page = rendering.text_page(replace(REPORT, checks=replace(checks, differences=())))
    assert section(page, "not as declared").blocks == ["  … and 3 more"]


def test_a_page_of_an_error_has_its_details_its_hint_and_the_exit_status() -> None:
    page = rendering.error_page("apply", Unavailable("no GPU", hint="name one", details=("looked here",)))
    assert page.verdict == ("failed, exit status 3", "bad")
    (pairs,) = page.sections[0].blocks
    assert isinstance(pairs, Pairs)
    assert pairs.rows == [("error", "no GPU"), ("", "looked here"), ("hint", "name one")]


@pytest.mark.parametrize(
    ("outcome", "tone"),
    [("ok", "good"), ("interrupted", "warn"), ("taken down", "warn"), ("failed", "bad"), ("lost", "bad")],
)
def test_an_outcome_has_its_tone(outcome: str, tone: str) -> None:
    verdict = rendering.text_page(replace(REPORT, outcome=outcome)).verdict
    assert verdict is not None
    assert verdict.tone == tone
