from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from memtopo.common.text import display_width
from memtopo.common.units import MiB
from memtopo.output import console
from memtopo.output.diagram.model import DeviceAccess, Diagram, MappingSpan, MemoryDiagram, MemoryShare, RangeDiagram
from memtopo.output.diagram.notation import granted
from memtopo.output.terminal.diagram import TerminalDrawing
from memtopo.output.terminal.labels import clipped
from memtopo.output.terminal.panel import Block, first_cells
from tests.helpers.console import written_at_width
from tests.helpers.diagrams import HOSTILE_TEXTS, hostile_diagram, hostile_processes, spec_diagram
from tests.helpers.specs import EVERY_SPEC, ROOT

GOLDEN = ROOT / "tests" / "golden"
HARD = GOLDEN / "parts-and-holes.yaml"
DRAWN = [*EVERY_SPEC, HARD]
IN_ASCII = [ROOT / "specs" / "quickstart.yaml", ROOT / "specs" / "hand-over.yaml", HARD]
WIDTHS = (60, 80, 200)
STYLES = re.compile(r"\x1b\[[0-9;]*m")


def as_kept(text: str, name: str) -> None:
    """Compare with the file of that name, or write it where GOLDEN=write is set."""
    file = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), "if it is better now, write it anew: GOLDEN=write pytest tests/output/test_map.py"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_drawing(path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout is drawn as it is kept in tests/golden/"""
    as_kept(written_at_width(TerminalDrawing(spec_diagram(path)[0]), width, monkeypatch), f"{path.stem}-{width}.txt")


@pytest.mark.parametrize("path", IN_ASCII, ids=lambda path: path.stem)
def test_a_drawing_in_ascii(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same drawing in ASCII alone is as it is kept in tests/golden/"""
    text = written_at_width(TerminalDrawing(spec_diagram(path)[0], ascii=True), 80, monkeypatch)
    assert text.isascii()
    as_kept(text, f"{path.stem}-80-ascii.txt")


def test_every_kept_drawing_is_drawn() -> None:
    """No file in tests/golden/ is left over from a drawing that nobody makes"""
    kept = {f"{path.stem}-{width}.txt" for path in DRAWN for width in WIDTHS}
    kept |= {f"{path.stem}-80-ascii.txt" for path in IN_ASCII}
    assert {file.name for file in GOLDEN.glob("*.txt")} == kept


@pytest.mark.parametrize("width", [20, 21, 33, 45, 60, 79, 80, 100, 131, 200, 400])
@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
def test_no_line_is_too_wide(path: Path, width: int, ascii: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is wider than the terminal, however narrow, and none ends in blanks"""
    for line in written_at_width(TerminalDrawing(spec_diagram(path)[0], ascii=ascii), width, monkeypatch).splitlines():
        assert display_width(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_colour_adds_nothing_but_colour(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its colours, a drawing is the one for a pipe"""
    plain = written_at_width(TerminalDrawing(spec_diagram(path)[0]), 80, monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = written_at_width(TerminalDrawing(spec_diagram(path)[0]), 80, monkeypatch)
    assert bool(plain) == ("\x1b[" in coloured)
    assert [line.rstrip() for line in STYLES.sub("", coloured).splitlines()] == plain.splitlines()


def test_a_stream_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose encoding has no lines and blocks gets ASCII without being asked"""
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1")
    console.show(TerminalDrawing(spec_diagram(HARD)[0]), stream)
    stream.seek(0)
    assert stream.read() == written_at_width(TerminalDrawing(spec_diagram(HARD)[0], ascii=True), 80, monkeypatch)


@pytest.mark.parametrize("width", [20, 60, 200])
@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("made", [hostile_diagram, hostile_processes], ids=["one", "several"])
@pytest.mark.parametrize("evil", HOSTILE_TEXTS, ids=ascii)
def test_names_inject_nothing(
    evil: str, made: Callable[[str], Diagram], width: int, ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text becomes markup, an emoji, a control sequence or a line of its own, or makes a line too wide"""
    text = written_at_width(TerminalDrawing(made(evil), ascii=ascii), width, monkeypatch)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert all(display_width(line) <= width for line in text.splitlines())
    assert not ascii or text.isascii()
    if width == 200 and evil in HOSTILE_TEXTS[:2]:
        assert evil in text


def test_one_chunk_seen_twice_has_one_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring's second mapping is marked as the first one is, and said to be the same"""
    text = written_at_width(TerminalDrawing(spec_diagram(ROOT / "specs" / "ring-buffer.yaml")[0]), 80, monkeypatch)
    assert re.search(r"a█+a█+", text)
    assert text.count("again") == 1


def test_memory_that_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device's bar ends with what others have of it, and its line says how much that is"""
    shares = (MemoryShare("c", 1, 25 * MiB, 25 * MiB, ()),)
    memory = MemoryDiagram("gpu0", (), 25 * MiB, 100 * MiB, 50 * MiB, 25 * MiB, shares)
    text = written_at_width(TerminalDrawing(Diagram((), (memory,)), ascii=True), 80, monkeypatch)
    assert "25 MiB used  50 MiB taken  25 MiB free" in text
    assert re.search(r"a#+\.+/+$", text.strip())


def test_a_tiny_piece_has_a_cell() -> None:
    """As long as there are cells enough, every piece has one, in order, and the last one stays inside"""
    blocks = [Block(0), *(Block(10**6 - 10 + turn) for turn in range(10))]
    assert first_cells(blocks, 10**6, 30) == [0, *range(20, 30)]
    assert first_cells([Block(turn) for turn in range(10)], 10**6, 30) == list(range(10))


def test_too_many_pieces_keep_the_scale() -> None:
    """Where pieces are more than the cells can show, several begin in one"""
    assert first_cells([Block(turn) for turn in range(100)], 200, 20) == [turn // 10 for turn in range(100)]


def many(count: int, ranges: int = 1) -> Diagram:
    pieces = [
        MappingSpan(turn * MiB, MiB, f"c{turn}", f"c{turn}", f"c{turn}", 0, 1, MiB, 0, 0, ("gpu0",))
        for turn in range(count)
    ]
    shown = RangeDiagram("r", "r", 1, count * MiB, count * MiB, tuple(pieces), ())
    return Diagram((shown,) * ranges, ())


@pytest.mark.parametrize("width", [30, 80, 200])
def test_long_lists_are_cut_short(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many pieces the first and the last have a label, of many ranges the first are drawn; the rest is counted"""
    lines = written_at_width(TerminalDrawing(many(5000, 50), ranges=3, rows=6), width, monkeypatch).splitlines()
    assert sum("… 4,994 more" in line for line in lines) == 3
    assert any("… and 47 more ranges" in line for line in lines)
    assert len(lines) < 40
    assert any("c4999" in line for line in lines)


def test_letters_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 53rd kind of chunk and those after it are all marked by a star"""
    lines = written_at_width(TerminalDrawing(many(60), rows=100), 200, monkeypatch).splitlines()
    marks = [line.split()[0] for line in lines if " c" in line][1:]
    assert len(set(marks[:52])) == 52
    assert set(marks[52:]) == {"*"}


@pytest.mark.parametrize(
    ("access", "told"),
    [
        ([], "no access"),
        ([("gpu0", "rw")], "gpu0 rw"),
        ([("gpu0", "rw"), ("gpu1", "rw"), ("gpu2", "rw"), ("gpu3", "r")], "gpu0-2 rw, gpu3 r"),
        ([("gpu0", "r"), ("gpu2", "r"), ("gpu3", "r"), ("host", "r")], "gpu0 r, gpu2-3 r, host r"),
    ],
)
def test_access_in_words(access: list[tuple[str, str]], told: str) -> None:
    """Neighbouring GPUs with the same access are told as one"""
    assert granted([DeviceAccess(*each) for each in access]) == told


def test_long_names_keep_both_ends() -> None:
    """Of a name too long for a label, the beginning and the end are shown"""
    assert clipped("attention-weights-of-the-decoder.0 … 15") == "attention-we…ecoder.0 … 15"
    assert clipped("hot") == "hot"
