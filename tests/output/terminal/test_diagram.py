from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from memtopo.common.text import display_width
from memtopo.common.units import MiB
from memtopo.geometry.diagram import DeviceAccess, Diagram, MappingSpan, MemoryDiagram, MemoryShare, RangeDiagram
from memtopo.output import console
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import terminal
from memtopo.output.diagram.notation import granted
from memtopo.output.diagram.panel import PanelBlock, first_cells
from memtopo.output.diagram.terminal import clipped
from tests.helpers.console import written_at_width
from tests.helpers.diagrams import HOSTILE_TEXTS, hostile_diagram, hostile_processes, spec_diagram
from tests.helpers.specs import EVERY_SPEC, ROOT

GOLDEN = ROOT / "tests" / "golden"
HARD = GOLDEN / "parts-and-holes.yaml"
DRAWN = [*EVERY_SPEC, HARD]
FITTED = [(20, 33, 60, 80, 200), pytest.param((21, 45, 79, 100, 131, 400), marks=pytest.mark.exhaustive(seconds=0.1))]
INJECTED = [
    ((False, 20), (False, 200), (True, 60)),
    pytest.param(((False, 60), (True, 20), (True, 200)), marks=pytest.mark.exhaustive(seconds=0.1)),
]
"""Whether a drawing is in ASCII, and its width."""
IN_ASCII = [ROOT / "specs" / "quickstart.yaml", ROOT / "specs" / "hand-over.yaml", HARD]
WIDTHS = (60, 80, 200)
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def as_kept(text: str, name: str) -> None:
    """Compare with the file of that name, or write it where GOLDEN=write is set."""
    file = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), "to update it: GOLDEN=write pytest tests/output/terminal/test_diagram.py"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_drawings_equal_the_golden_files(path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    as_kept(written_at_width(Drawing(spec_diagram(path)[0]), width, monkeypatch), f"{path.stem}-{width}.txt")


@pytest.mark.parametrize("path", IN_ASCII, ids=lambda path: path.stem)
def test_ascii_drawings_equal_the_golden_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = written_at_width(Drawing(spec_diagram(path)[0], ascii=True), 80, monkeypatch)
    assert text.isascii()
    as_kept(text, f"{path.stem}-80-ascii.txt")


def test_every_golden_file_is_used() -> None:
    kept = {f"{path.stem}-{width}.txt" for path in DRAWN for width in WIDTHS}
    kept |= {f"{path.stem}-80-ascii.txt" for path in IN_ASCII}
    assert {file.name for file in GOLDEN.glob("*.txt")} == kept


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("widths", FITTED, ids=["some widths", "other widths"])
def test_lines_of_a_drawing_fit_the_width(
    path: Path, ascii: bool, widths: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None ends with blanks."""
    shown = Drawing(spec_diagram(path)[0], ascii=ascii)
    for width in widths:
        for line in written_at_width(shown, width, monkeypatch).splitlines():
            assert display_width(line) <= width
            assert line == line.rstrip()


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_coloured_drawing_has_the_text_of_the_plain_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = written_at_width(Drawing(spec_diagram(path)[0]), 80, monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = written_at_width(Drawing(spec_diagram(path)[0]), 80, monkeypatch)
    assert bool(plain) == ("\x1b[" in coloured)
    assert [line.rstrip() for line in STYLES.sub("", coloured).splitlines()] == plain.splitlines()


def test_a_stream_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1")
    console.show(Drawing(spec_diagram(HARD)[0]), stream)
    stream.seek(0)
    assert stream.read() == written_at_width(Drawing(spec_diagram(HARD)[0], ascii=True), 80, monkeypatch)


@pytest.mark.parametrize("made", [hostile_diagram, hostile_processes], ids=["one", "several"])
@pytest.mark.parametrize("evil", HOSTILE_TEXTS, ids=ascii)
@pytest.mark.parametrize("drawn", INJECTED)
def test_texts_in_a_drawing_inject_nothing(
    drawn: Sequence[tuple[bool, int]], evil: str, made: Callable[[str], Diagram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No markup, emoji, control sequence, line break or line that is too wide."""
    for ascii, width in drawn:
        text = written_at_width(Drawing(made(evil), ascii=ascii), width, monkeypatch)
        assert all(char == "\n" or char.isprintable() for char in text)
        assert all(display_width(line) <= width for line in text.splitlines())
        assert not ascii or text.isascii()
        if width == 200 and evil in HOSTILE_TEXTS[:2]:
            assert evil in text


def test_a_chunk_mapped_twice_has_one_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second mapping refers to the first."""
    text = written_at_width(Drawing(spec_diagram(ROOT / "specs" / "ring-buffer.yaml")[0]), 80, monkeypatch)
    assert re.search(r"a█+a█+", text)
    assert text.count("again") == 1


def test_memory_used_by_others_ends_the_bar_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line has the size."""
    shares = (MemoryShare("c", 1, 25 * MiB, 25 * MiB, ()),)
    memory = MemoryDiagram("gpu0", (), 25 * MiB, 100 * MiB, 50 * MiB, 25 * MiB, shares)
    text = written_at_width(Drawing(Diagram((), (memory,)), ascii=True), 80, monkeypatch)
    assert "25 MiB used  50 MiB taken  25 MiB free" in text
    assert re.search(r"a#+\.+/+$", text.strip())


def test_an_elastic_range_has_the_access_of_what_a_program_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written_at_width(Drawing(spec_diagram(ROOT / "specs" / "elastic-kv.yaml")[0]), 80, monkeypatch)
    assert "elastic: page (gpu0 rw), else zero page" in text
    assert "gpu0  up to 514 MiB used" in text


def test_every_span_has_a_cell_if_cells_suffice() -> None:
    """In order, and the last one inside the bar."""
    blocks = [PanelBlock(0), *(PanelBlock(10**6 - 10 + turn) for turn in range(10))]
    assert first_cells(blocks, 10**6, 30) == [0, *range(20, 30)]
    assert first_cells([PanelBlock(turn) for turn in range(10)], 10**6, 30) == list(range(10))


def test_several_spans_share_a_cell_if_cells_do_not_suffice() -> None:
    assert first_cells([PanelBlock(turn) for turn in range(100)], 200, 20) == [turn // 10 for turn in range(100)]


def many(count: int, ranges: int = 1) -> Diagram:
    pieces = [
        MappingSpan(turn * MiB, MiB, f"c{turn}", f"c{turn}", f"c{turn}", 0, 1, MiB, 0, 0, ("gpu0",))
        for turn in range(count)
    ]
    shown = RangeDiagram("r", "r", 1, count * MiB, count * MiB, tuple(pieces), ())
    return Diagram((shown,) * ranges, ())


@pytest.mark.parametrize("width", [30, 80, 200])
def test_long_lists_of_spans_and_ranges_are_shortened_and_counted(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MOST_RANGES", 3)
    monkeypatch.setattr(terminal, "MOST_ROWS", 6)
    lines = written_at_width(Drawing(many(5000, 50)), width, monkeypatch).splitlines()
    assert sum("… 4,994 more" in line for line in lines) == 3
    assert any("… and 47 more ranges" in line for line in lines)
    assert len(lines) < 40
    assert any("c4999" in line for line in lines)


def test_kinds_of_chunks_after_the_52nd_share_a_star(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MOST_ROWS", 100)
    lines = written_at_width(Drawing(many(60)), 200, monkeypatch).splitlines()
    marks = [line.split()[0] for line in lines if " c" in line][1:]
    assert len(set(marks[:52])) == 52
    assert set(marks[52:]) == {"*"}


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ([], "no access"),
        ([("gpu0", "rw")], "gpu0 rw"),
        ([("gpu0", "rw"), ("gpu1", "rw"), ("gpu2", "rw"), ("gpu3", "r")], "gpu0-2 rw, gpu3 r"),
        ([("gpu0", "r"), ("gpu2", "r"), ("gpu3", "r"), ("host", "r")], "gpu0 r, gpu2-3 r, host r"),
    ],
)
def test_neighbouring_devices_with_the_same_access_are_joined(access: list[tuple[str, str]], expected: str) -> None:
    assert granted([DeviceAccess(*each) for each in access]) == expected


def test_long_names_are_cut_in_the_middle() -> None:
    assert clipped("attention-weights-of-the-decoder.0 … 15") == "attention-we…ecoder.0 … 15"
    assert clipped("hot") == "hot"
