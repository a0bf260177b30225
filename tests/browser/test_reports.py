"""Pages of runs and of probes in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.common.errors import MemtopoError
from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.output import diagnostics
from memtopo.output.diagram.build import build_diagram
from memtopo.output.html import document as html
from memtopo.output.json import diagnostics_document
from memtopo.output.probe import full_page as probe_page
from memtopo.output.report import diagnostics_page, error_page, full_page
from memtopo.plans.report import Difference, Failure, Leak, PhaseTime, ProcessReport, Report
from memtopo.probe import Probed, Times, Timing
from memtopo.probe.report import ProbeReport, probe_report
from memtopo.rules import validate
from memtopo.run import apply, processes
from tests.browser.inspection import Browser, View
from tests.helpers.command_line import ROOT
from tests.helpers.specs import document, ensemble, run_request

EVIL = "</title></style>]]>\"'><script>document.documentElement.dataset.evil=1</script><svg/onload=alert(1)>&\x1b"
SCRIPTS = "return document.querySelectorAll('script,img,[onload],[onerror],[data-evil]').length"
H200 = machine.load("h200x2")
Defects = Callable[[str, int], list[str]]


@pytest.fixture(scope="module")
def report() -> Report:
    """Report of a run in one process."""
    request = run_request(ROOT / "specs" / "paged-kv.yaml", H200)
    driver = SimDriver(H200)
    driver.init()
    try:
        return apply.apply(replace(request, picture=build_diagram(request.geometry, H200)), Ledger(driver))
    finally:
        driver.close()


@pytest.fixture(scope="module")
def of_processes() -> Report:
    """Report of a run in several processes."""
    made = ensemble((ROOT / "specs" / "hand-over.yaml").read_text(), H200)
    picture = build_diagram(made.request.geometry, H200)
    return processes.apply(replace(made, request=replace(made.request, picture=picture)))


@pytest.fixture(scope="module")
def probed() -> ProbeReport:
    """Report of a probe, from a record."""
    record = machine.load("h200x4")
    found = Probed(record, Times(6.0, 0.4, 0.2, tuple(Timing(f"gpu{n} vmm", "gpu0", 0.01 * n) for n in range(40))))
    return probe_report(found, record, "h200x4", simulated=True, against=("h200x2", H200))


def failed(report: Report) -> Report:
    """A report in which everything that can go wrong has."""
    found = report.checks
    assert found
    wrong = tuple(
        Difference("access", f"kv at {n:#x}", "rw", "none", place="a.yaml:1:2", hint=EVIL) for n in range(100)
    )
    pages = tuple(f"page.{n}" for n in range(9000))
    return replace(
        report,
        outcome="leaked",
        exit_code=5,
        checks=replace(found, differences=wrong, different=4321),
        failure=Failure(f"create {EVIL}", "CUDA_ERROR_OUT_OF_MEMORY", EVIL, place="a.yaml:3:4", hint=EVIL, cause=EVIL),
        leaks=tuple(Leak(f"chunk page.{n}", EVIL, pages) for n in range(500)),
        notes=(EVIL,) * 300,
    )


@pytest.fixture
def defects(browser: Browser, views: Sequence[View], tmp_path: Path) -> Defects:
    """Defects of a page with so many drawings."""

    def found(text: str, drawings: int) -> list[str]:
        file = tmp_path / "page.html"
        file.write_text(text)
        browser.open(file)
        faults = [fault for view in views for fault in browser.look(view, drawings)]
        if browser.driver.execute_script(SCRIPTS):
            faults.append("something of a text became an element")
        return [*faults, *browser.complaints()]

    return found


def test_the_page_of_a_run_has_no_defect_at_any_width_scheme_or_in_print(report: Report, defects: Defects) -> None:
    """Nothing is clipped, covered, hard to read, fetched or reported on the console."""
    assert report.outcome == "ok"
    assert defects(html(full_page(report)), 1) == []


def test_the_page_of_processes_has_a_timeline_of_each(of_processes: Report, browser: Browser, defects: Defects) -> None:
    assert of_processes.outcome == "ok"
    assert defects(html(full_page(of_processes)), 1) == []
    tracks = browser.driver.execute_script("return document.querySelectorAll('.track').length")
    assert tracks == len(of_processes.times) + len(of_processes.processes)


def test_the_page_of_a_failure_shows_all_of_it_and_runs_nothing(
    report: Report, browser: Browser, defects: Defects
) -> None:
    assert defects(html(full_page(failed(report))), 1) == []
    shown = browser.driver.execute_script("return document.body.innerText")
    for words in ("failed", "CUDA_ERROR_OUT_OF_MEMORY", "4,221 more", "8,990 more", EVIL.replace("\x1b", "\\x1b")):
        assert words in shown


def test_pages_of_refusals_have_no_defect(browser: Browser, defects: Defects) -> None:
    text = "ranges: {kv: {size: 3MiB}}\nchunks: {'<b>': {location: gpu9, size: 2MiB}}\nmap: {kv: ['<script>']}\n"
    read = document(text)
    diagnosed = validate(read, H200).diagnostics
    found = diagnostics_document(diagnosed, read, EVIL)
    assert found.errors > 2
    assert defects(html(diagnostics_page(found, diagnostics.text(diagnosed, read), EVIL)), 0) == []
    shown = browser.driver.execute_script("return document.querySelector('pre').innerText")
    line = text.splitlines()[1]
    margin = " " * (line.index("<b>") - 1)  # to the quote before it
    assert f" 4 | {line}\n   | {margin}^^^^^\n" in shown
    error = MemtopoError(EVIL, hint=EVIL)
    assert defects(html(error_page("apply", error)), 0) == []


def test_the_page_of_a_probe_shows_matrices_as_heat_maps(
    probed: ProbeReport, browser: Browser, defects: Defects
) -> None:
    assert defects(html(probe_page(probed)), 0) == []
    cells = "[...document.querySelectorAll('.heat td[class^=h]')]"
    found = browser.driver.execute_script(f"return {cells}.map((cell) => getComputedStyle(cell).backgroundColor)")
    assert len(found) == 4 * 12
    assert set(found) == {"rgb(253, 231, 37)"}, "all pairs are within an eighth of the fastest one"


def test_two_gpus_have_nothing_to_compare_and_no_colours(defects: Defects) -> None:
    pair = Probed(H200, Times(6.0, 0.4, 0.2, ()))
    shown = html(probe_page(probe_report(pair, H200, "h200x2", simulated=True, against=None)))
    assert defects(shown, 0) == []
    assert "396.7" in shown
    assert not re.search(r'class="(?:h[0-9]|scale)"', shown)


def test_pages_of_the_largest_runs_are_bounded(of_processes: Report) -> None:
    """Names, rows, phases, processes, leaks and notes are, whatever their number."""
    times = tuple(PhaseTime("map", 100_000, 1.0, n, n + 1.0) for n in range(300))
    crowd = tuple(
        ProcessReport(f"pe.{n}", n, "ok", times=times, placed=of_processes.processes[0].placed) for n in range(1024)
    )
    rows = of_processes.plan.processes[0].rows * 200
    plan = replace(
        of_processes.plan,
        processes=tuple(replace(of_processes.plan.processes[0], first=f"pe.{n}", rows=rows) for n in range(64)),
        rows=rows,
    )
    text = html(full_page(replace(failed(of_processes), times=times, processes=crowd, plan=plan)))
    assert len(text) < 3_000_000
    assert re.search(r"… and [\d,]+ more", text)
