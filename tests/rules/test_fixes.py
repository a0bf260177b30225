"""Corrections of specs: errors with exactly one right answer, in a text that otherwise stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.language import Document, read_file, read_text
from memtopo.machine import Machines, load
from memtopo.rules import files, validate
from memtopo.rules.files import CheckedFile, Correction
from tests.helpers.machines import noted
from tests.helpers.specs import ROOT
from tests.language.test_located import SPEC
from tests.rules.test_bad import BAD


def correct(document: Document, *machines: Machines) -> Correction:
    known = {str(number): each for number, each in enumerate(machines or (load("h200x2"),))}

    def check(each: Document) -> CheckedFile:
        return files.check(each, known, lambda name, _: known[name])

    return files.corrected(document, check)


def corrected(text: str) -> str:
    return correct(read_text(text.encode(), "spec.yaml")).after


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("size: 64MiB}", "size: 64MB}"),
        ("size: 64MiB}", "size: 64 mib}"),
        ("size: 64MiB}", "size: 67108864}"),
        ("size: 64MiB}", "size: 0.0625GiB}"),
        ("size: 64MiB}", "sise: 64MiB}"),
        ("size: 64MiB\n", "size: 64mb\n"),
        ("size: 64MiB\n", "Size: 64MiB\n"),
        ("ranges:", "range:"),
        ("map:", "mapp:"),
        ("[hot]", "[hott]"),
        ("{kv: [", "{kvv: ["),
        ("gpu0: rw", "gpu0: Rw"),
        ("size: 64MiB}", "size: 64MiB, fixed: false}"),
    ],
)
def test_units_and_near_misses_of_names_have_one_right_answer(right: str, wrong: str) -> None:
    assert right in SPEC
    assert corrected(SPEC.replace(right, wrong, 1)) == (SPEC if "fixed" not in wrong else SPEC.replace(right, wrong, 1))


def test_several_errors_are_corrected_that_hide_one_another() -> None:
    wrong = SPEC.replace("ranges:", "rangess:").replace("64MiB}", "64MB}").replace("[hot]", "[hott]")
    assert corrected(wrong) == SPEC


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("size: 64MiB}", "size: 64}"),  # MiB or B
        ("size: 64MiB}", "size: 064MiB}"),  # octal in YAML 1.1
        ("size: 64MiB\n", "size: 2MiB\n    count: 032\n"),  # the same
        ("size: 64MiB}", "size: 4 pages}"),  # granules, or 4 KiB each
        ("size: 64MiB}", "size: 64MiB, sise: 64MiB}"),  # given twice then
        ("[hot]", "[cold]"),
        ("gpu0: rw", "gpu0: write"),
        ("chunks:\n", "chunks:\n  hat: {location: gpu0, size: 2MiB}\n  hit: {location: gpu0, size: 2MiB}\n"),
    ],
)
def test_an_error_without_exactly_one_right_answer_stays(right: str, wrong: str) -> None:
    text = SPEC.replace(right, wrong, 1)
    if "hat" in wrong:
        text = text.replace("[hot]", "[hrt]")
    assert corrected(text) == text


def test_an_edit_that_does_harm_keeps_no_other_from_being_made() -> None:
    harmful = SPEC.replace("size: 64MiB}", "size: 64MiB, sise: 64MiB}")
    assert corrected(harmful.replace("[hot]", "[hott]").replace("gpu0: rw", "gpu0: Rw")) == harmful


def test_a_word_that_its_text_has_twice_stays() -> None:
    """Here that of the process is wrong, and that of the export is right."""
    text = """\
memtopo: 1
name: test
processes:
  server: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, exports: {sever: {chunk: c, via: fd}}}
  reader:
    imports: {w: {from: sever.sever}}
    ranges: {r: {size: 2MiB}}
    map: {r: [w]}
    access: {r: {gpu0: rw}}
"""
    assert corrected(text) == text
    assert corrected(text.replace("sever.sever", "serve.sever")) == text.replace("sever.sever", "server.sever")


EXPORT = SPEC + "exports: {x: {chunk: hot, via: fd}}\n"


def test_a_missing_handle_type_is_added_after_the_last_value_of_a_block() -> None:
    assert corrected(EXPORT) == EXPORT.replace("size: 64MiB\n", "size: 64MiB\n    handles: [fd]\n", 1)


def test_a_missing_handle_type_is_added_within_braces() -> None:
    flow = EXPORT.replace(
        "hot:\n    location: gpu0     # the first\n\n    size: 64MiB", "hot: {location: gpu0, size: 64MiB,  } # x"
    )
    assert corrected(flow) == flow.replace("size: 64MiB,", "size: 64MiB, handles: [fd],")


@pytest.mark.parametrize(
    "text",
    [
        EXPORT.replace("via: fd}", "via: fd}, y: {chunk: hot, via: fabric}"),
        EXPORT.replace("via: fd}", "via: fabric else fd}"),
        EXPORT.replace("    size: 64MiB\n", "    size: 64MiB\n    handles: [fabric]\n"),
    ],
    ids=["two-transports", "alternatives", "another-handle-type"],
)
def test_no_handle_type_is_added_where_several_would_do(text: str) -> None:
    assert corrected(text) == text


def test_no_handle_type_is_added_that_the_machine_does_not_support() -> None:
    """Other corrections of the round are made, also that of a misspelled key before such a type."""
    text = EXPORT.replace("via: fd", "via: fabric")
    assert corrected(text) == text
    assert corrected(text.replace("gpu0: rw", "gpu0: Rw")) == text
    written = SPEC.replace("    size: 64MiB\n", "    size: 64MiB\n    handles: [fabric]\n")
    assert corrected(written.replace("handles", "handels")) == written


def test_only_what_is_wrong_on_all_machines_is_corrected() -> None:
    wrong = read_text(SPEC.replace("64MiB}", "64MB}").encode(), "spec.yaml")
    assert correct(wrong, load("h200x2"), load("h100x1")).after == SPEC
    assert correct(wrong, load("h200x2"), load("h100x1")).errors == 1
    second = EXPORT.replace("location: gpu0", "location: gpu1")
    assert correct(read_text(second.encode(), "spec.yaml"), load("h200x2")).errors == 1
    assert correct(read_text(second.encode(), "spec.yaml"), load("h200x2"), load("h100x1")).after == second


def test_line_ends_of_windows_and_a_last_line_without_one_stay() -> None:
    windows = EXPORT.replace("\n", "\r\n")
    assert corrected(windows) == windows.replace("size: 64MiB\r\n", "size: 64MiB\r\n    handles: [fd]\r\n", 1)
    last = EXPORT.replace("chunks:", "exports: {x: {chunk: hot, via: fd}}\nchunks:", 1)
    last = last.partition("map:")[0].rstrip().replace("chunks:", "map: {kv: [hot]}\naccess: {kv: {gpu0: rw}}\nchunks:")
    assert corrected(last) == f"{last}\n    handles: [fd]"
    assert corrected(last.replace("\n", "\r\n")) == f"{last}\n    handles: [fd]".replace("\n", "\r\n")


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_correction_ends_an_error_and_correcting_again_changes_nothing(path: Path) -> None:
    found, machine = read_file(path), noted(path.read_text(errors="replace"))
    done = correct(found, machine)
    again = correct(read_text(done.after.encode(), "spec.yaml"), machine)
    assert (again.after, again.errors) == (done.after, 0)
    assert bool(done.errors) == (done.after != found.text)


def test_valid_specs_stay_as_they_are() -> None:
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        assert correct(read_file(path), load("h200x4")).after == path.read_text()


def test_read_only_access_is_r() -> None:
    assert corrected(SPEC.replace("gpu0: rw", "gpu0: ro")) == SPEC.replace("gpu0: rw", "gpu0: r")


@pytest.mark.parametrize(
    ("right", "wrong", "meant"),
    [
        ("size: 64MiB\n", "size: 64MiB\n    handles: [POSIX_FD]\n", "fd"),
        ("size: 64MiB\n", "size: 64MiB\n    handles: [fabricc]\n", "fabric"),
        ("size: 64MiB\n", "size: 64MiB\n    count: 0x1\n", "1"),
        ("size: 64MiB\n", "size: 64MiB\n    count: 1_000\n", "1000"),
        ("gpu0: rw", "gpu0: ro", "r"),
        ("gpu0: rw}}", "gpu0: rw}}\nexports: {x: {range: kv, via: dma_buf}}", "dmabuf"),
    ],
)
def test_the_help_for_a_word_or_a_number_names_what_its_correction_writes(right: str, wrong: str, meant: str) -> None:
    document = read_text(SPEC.replace(right, wrong, 1).encode(), "spec.yaml")
    diagnostics = validate(document, load("h200x2")).diagnostics
    edits = [(each.edit.new, each.help) for each in diagnostics if each.edit]
    assert edits in ([(meant, f"did you mean {meant!r}?")], [(meant, f"write {meant}")])
