"""Records of figures and of passes on hardware, the tables that are made from them, and what pages claim of them."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS
from docs import make_figures
from tests.helpers import pages
from tests.helpers.specs import ROOT

DOCS = ROOT / "docs"
FIGURES = list(make_figures.runs())
PASSES = list(make_figures.runs(make_figures.RESULTS / "passes"))
CLAIMS = re.compile(r"(\d[\d,]*(?:\.\d+)?) (ms|µs|s|MiB|GiB|GB/s)\b")
LINK = re.compile(r"performance\.md#([\w-]+)")


def blocks() -> list[tuple[str, str]]:
    """Paragraphs, tables and items of lists with a link to a benchmark: the page, and the text."""
    every = [(page.name, page.read_text(encoding="utf-8")) for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]]
    return [(name, text) for name, page in every for text in re.split(r"\n\n|\n- ", page) if LINK.search(text)]


def recorded(name: str, unit: str) -> list[str]:
    """Numbers of a record that have a unit, and those of the texts of its runs."""
    found = []
    for run in (run for record, run in FIGURES if record == name):
        found += [run[key] for key in ("memtopo", "base") if key in run and run["unit"] == unit]
        found += [number for number, of in CLAIMS.findall(run["measured"]) if of == unit]
    return found


@pytest.mark.parametrize("page", ["performance.md", "hardware.md"])
def test_tables_of_figures_are_those_of_the_records(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert make_figures.with_tables(text) == text, "make docs"
    assert len(text.encode()) <= 6144


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_record_and_a_row_that_pages_link_to(name: str) -> None:
    assert name in pages.anchors(DOCS / "performance.md")
    assert {run["command"] for record, run in FIGURES if record == name} == {f"python3 -m bench {name}"}


def test_records_say_on_what_and_when_they_were_made() -> None:
    for name, run in [*FIGURES, *PASSES]:
        assert date.fromisoformat(run["date"]), name
        assert run["gpu"] == "none" or re.fullmatch(r"(\d × )?H[12]00", run["gpu"]), name
        assert run["gpu"] == "none" or re.fullmatch(r"\d+\.\d+\.\d+", run["driver"]), name


def test_limits_of_records_are_read_whole_and_figures_beyond_them_are_marked() -> None:
    for name, run in FIGURES:
        assert re.fullmatch(rf"({make_figures.LIMIT.pattern}(, |$))*", run.get("limit", "")), name
        assert make_figures.missed(run) or "reason" not in run, (name, run)
    marked = (DOCS / "performance.md").read_text(encoding="utf-8").count("**missed**")
    assert marked == sum(make_figures.missed(run) for _, run in FIGURES)


def test_passes_name_tests_and_commands_that_exist() -> None:
    for name, run in PASSES:
        assert run["tests"], name
        assert all((ROOT / each).exists() or each.startswith("memtopo ") for each in run["tests"]), name


def test_figures_that_pages_claim_are_in_the_record_that_they_link_to() -> None:
    """To the digits that are written."""
    wrong, claims = [], 0
    for page, text in blocks():
        for number, unit in CLAIMS.findall(text):
            claims += 1
            digits = len(number.partition(".")[2])
            known = [value for name in LINK.findall(text) for value in recorded(name, unit)]
            if not any(f"{float(value.replace(',', '')):.{digits}f}" == number.replace(",", "") for value in known):
                wrong.append(f"{page}: {number} {unit}")
    assert wrong == []
    assert claims > 10


def test_records_are_read_with_the_digits_that_were_written(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("unit: s\nruns:\n- {memtopo: 0.600}\n")
    assert list(make_figures.runs(tmp_path)) == [("one", {"unit": "s", "memtopo": "0.600"})]
