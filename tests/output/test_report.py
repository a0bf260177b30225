from __future__ import annotations

from dataclasses import replace

import pytest

from memtopo.machine import MachineLine
from memtopo.output import report as rendering
from memtopo.plans.report import (
    Checks,
    DeviceMemory,
    Difference,
    Failure,
    Leak,
    Left,
    PhaseTime,
    PlanSummary,
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
    assert last_line(replace(REPORT, **change)) == verdict  # type: ignore[arg-type]


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
