"""Pages of records: the memory at a moment, and what a record has other than a spec."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.output import calls, console
from memtopo.output.blocks import Page
from memtopo.records import MemoryRow, RecordSummary
from memtopo.records.comparison import Comparison, MemoryDifference

ROW = MemoryRow("gpu0", "chunk", "", "cuMemCreate", 3, 6 << 20)
SUMMARY = RecordSummary("r.jsonl", "end", 0.5, 1.0, 12, "h200x2", ("",), (), (ROW,), (), {"gpu0": 8 << 20}, {})
DIFFERENT = MemoryDifference("chunks", "gpu0", 2 << 20, "fd", 4, 3, "kv.yaml:4:3")


def shown(page: Page) -> str:
    return console.unstyled(page, 120)


def test_what_a_program_has_never_freed_is_listed_apart_from_what_it_has() -> None:
    assert "never freed" not in shown(calls.show_page(SUMMARY))
    text = shown(calls.show_page(replace(SUMMARY, memory=(), leaks=(ROW,))))
    assert "no memory" in text
    _, _, leaks = text.partition("never freed by the program")
    assert "6 MiB" in leaks


def test_the_page_of_a_record_has_its_marks_and_its_peaks() -> None:
    text = shown(calls.show_page(replace(SUMMARY, marks=("warm", "full"))))
    assert "moments that the program marked: warm, full" in text
    assert "the most at any time: gpu0 8 MiB" in text
    assert calls.show_page(SUMMARY).where == "end, 500 ms after its begin"
    assert "marked" not in shown(calls.show_page(SUMMARY))


@pytest.mark.parametrize(("rows", "more"), [(40, 0), (41, 1)])
def test_rows_beyond_forty_are_counted(rows: int, more: int) -> None:
    many = tuple(replace(ROW, process=f"p{number}") for number in range(rows))
    text = shown(calls.show_page(replace(SUMMARY, memory=many)))
    assert text.count("cuMemCreate") == 40
    assert ("1 more" in text) == bool(more)


def test_a_comparison_has_the_numbers_of_both_and_the_place_in_the_spec() -> None:
    page = calls.comparison_page(Comparison("kv.yaml", "r.jsonl", "end", 0.0, (DIFFERENT, DIFFERENT)))
    text = shown(page)
    assert "the record differs from the spec: 2 of chunks" in text
    assert ["chunks", "gpu0", "2", "MiB", "fd", "4", "3"] in [line.split() for line in text.splitlines()]
    assert text.count("kv.yaml:4:3") == 2


@pytest.mark.parametrize(("within", "more"), [(0.0, ""), (0.05, ", within 5% of the bytes")])
def test_an_equal_record_says_within_what_it_is_equal(within: float, more: str) -> None:
    text = shown(calls.comparison_page(Comparison("kv.yaml", "r.jsonl", "end", within, ())))
    assert text.splitlines()[-1] == f"the record has the memory of the spec{more}"
