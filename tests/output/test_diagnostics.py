from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from memtopo.common.errors import Unavailable
from memtopo.common.text import display_width
from memtopo.diagnostics.model import Diagnostic, Label, Span
from memtopo.language import Document, read_text
from memtopo.output import diagnostics, plain

SPEC = """\
memtopo: 1
name: kv
chunks:
  hot: {location: gpu0, size: 33MiB}
  cold: {location: gpu1, size: 2MiB}
map:
  kv: [hot,
       cold]
"""
SIZE = Diagnostic(
    "MT301",
    "chunk 'hot': 33MiB is no multiple of its granularity, 2MiB",
    ("chunks", "hot", "size"),
    notes=("the granularity is that of gpu0 for chunks that are shared as file descriptors",),
    help="write 32MiB or 34MiB, or add 'round: up'",
)
OVERLAP = Diagnostic(
    "MT304",
    "two mappings overlap in 'kv'",
    ("map", "kv"),
    labels=(Label("declared here", ("chunks", "hot"), "key"),),
)
UNUSED = Diagnostic("MT501", "chunk 'cold' is mapped nowhere", ("chunks", "cold"), "key")


def spec_document(text: str = SPEC, name: str = "spec.yaml") -> Document:
    return read_text(text.encode(), name)


def on_line(line: str, needle: str, *labels: tuple[str, str]) -> tuple[Document, Diagnostic]:
    """A text of one line, and a fault at a needle in it."""
    places = tuple(Label(text, (), span=_span(line, at)) for at, text in labels)
    return spec_document(line), Diagnostic("MT103", "wrong", span=_span(line, needle), labels=places)


def _span(line: str, needle: str) -> Span:
    column = line.index(needle) + 1
    return Span(1, column, 1, column + len(needle))


def column_of(row: str, needle: str) -> int:
    return display_width(row[: row.index(needle)])


def test_the_whole() -> None:
    """Faults stand by place: a clickable line, the source underlined, notes and help, and the count at the end"""
    assert "\n".join(diagnostics.text([UNUSED, OVERLAP, SIZE], spec_document())) == (
        """\
spec.yaml:4:31: error[MT301]: chunk 'hot': 33MiB is no multiple of its granularity, 2MiB
   |
 4 |   hot: {location: gpu0, size: 33MiB}
   |                               ^^^^^
   = note: the granularity is that of gpu0 for chunks that are shared as file
           descriptors
   = help: write 32MiB or 34MiB, or add 'round: up'

spec.yaml:5:3: warning[MT501]: chunk 'cold' is mapped nowhere
   |
 5 |   cold: {location: gpu1, size: 2MiB}
   |   ^^^^

spec.yaml:7:7: error[MT304]: two mappings overlap in 'kv'
   |
 4 |   hot: {location: gpu0, size: 33MiB}
   |   --- declared here
...
 7 |   kv: [hot,
   |       ^^^^^

2 errors, 1 warning in spec.yaml"""
    )


def test_concise() -> None:
    """A concise diagnostic is its first line"""
    assert diagnostics.concise([OVERLAP, SIZE], spec_document()) == [
        "spec.yaml:4:31: error[MT301]: chunk 'hot': 33MiB is no multiple of its granularity, 2MiB",
        "spec.yaml:7:7: error[MT304]: two mappings overlap in 'kv'",
    ]


def test_without_a_place() -> None:
    """A fault that has no place stands first and names the file; labels without one are notes"""
    unread = Document("gone.yaml")
    fault = Diagnostic("MT001", "the file cannot be read: no such file", labels=(Label("looked here", ("a",)),))
    assert diagnostics.text([fault], unread) == [
        "gone.yaml: error[MT001]: the file cannot be read: no such file",
        "   = note: looked here",
        "",
        "1 error in gone.yaml",
    ]


def test_nothing_wrong() -> None:
    """Without diagnostics there is nothing to show"""
    assert diagnostics.text([], spec_document()) == []


@pytest.mark.parametrize(
    "before", ["", "世界: ", "e\u0301e\u0301: ", "\x1b[31m", "\u202eabc", "a\tb ", "🙂 "], ids=ascii
)
def test_underlines_in_the_right_column(before: str) -> None:
    """An underline stands below what it means, whatever wide, combining or control characters are before it"""
    page, fault = on_line(f"{before}WRONG: 1", "WRONG")
    _, _, source, underline, *_ = diagnostics.text([fault], page)
    assert column_of(source, "WRONG") == column_of(underline, "^^^^^")


def test_wide_characters_are_underlined_wholly() -> None:
    """Two columns of a wide character get two signs"""
    page, fault = on_line("a: 世界!", "世界")
    assert diagnostics.text([fault], page)[3].strip(" |") == "^^^^"


def test_an_empty_place_has_one_sign() -> None:
    """What has no length is underlined by one sign, also past the end of the line"""
    fault = Diagnostic("MT005", "the text is not YAML", span=Span(1, 3, 1, 3))
    assert diagnostics.text([fault], spec_document("a:"))[2:4] == [" 1 | a:", "   |   ^"]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("char", ["x", "世", "\x07", "e\u0301"])
def test_long_lines_are_cut_around_the_place(char: str, width: int) -> None:
    """A line that is too long is cut to the width around each place that is spoken of"""
    page, fault = on_line(f"{char * 3000}WRONG{char * 3000}HERE{char * 3000}", "WRONG", ("HERE", "and here"))
    rows = diagnostics.text([fault], page, width=width)[2:-2]
    sources = [row for row in rows if row.startswith(" 1 | ")]
    assert [("WRONG" in row, "HERE" in row) for row in sources] == [(True, False), (False, True)]
    assert all(row.startswith(" 1 | …") and row.endswith("…") for row in sources)
    assert max(map(display_width, rows)) <= width
    assert column_of(rows[0], "WRONG") == column_of(rows[1], "^^^^^")
    assert column_of(rows[2], "HERE") == column_of(rows[3], "----")


def test_what_is_longer_than_the_line_is_cut() -> None:
    """A place wider than the terminal is shown from its beginning"""
    page, fault = on_line(f"key: {'v' * 500}", "v" * 500)
    source, underline = diagnostics.text([fault], page, width=40)[2:4]
    assert display_width(source) <= 40
    assert column_of(source, "v") == column_of(underline, "^")


def test_piled_up_marks_end() -> None:
    """Combining characters without end do not make a line without end"""
    page, fault = on_line("a" + "\u0301" * 100_000 + "WRONG", "WRONG")
    assert max(map(len, diagnostics.text([fault], page))) < 1000


def test_labels_that_have_no_room_stand_below() -> None:
    """A label that would run over the edge gets a row of its own that ends in time"""
    page, fault = on_line("a: 1" + " " * 60 + "b: 2", "a", ("b", "this is where the other one was declared"))
    rows = diagnostics.text([fault], page)
    assert max(map(display_width, rows)) <= 80
    assert rows[5].endswith("this is where the other one was declared")


def test_nothing_reaches_the_terminal_raw() -> None:
    """No control character of a text, a name or a message is printed as it is"""
    evil = "\x1b[31m\x07\u202e\x9b"
    fault = Diagnostic(
        "MT103", evil, span=Span(1, 1, 1, 3), labels=(Label(evil, ()),), notes=(f"a{evil}",), help=f"b{evil}"
    )
    shown = "\n".join(diagnostics.text([fault], spec_document(f"a: {evil}", name=evil)))
    assert all(char == "\n" or char.isprintable() for char in shown)


def test_colour_is_only_added() -> None:
    """With colour the same text is there, and each style is closed"""
    plainly, coloured = (diagnostics.text([SIZE], spec_document(), colour=colour) for colour in (False, True))
    assert "\x1b[1;31merror[MT301]\x1b[0m" in coloured[0]
    assert plainly == [_without_colour(line) for line in coloured]


def _without_colour(line: str) -> str:
    for code in ("1;31", "1;34", "1;36", "34", "1", "0"):
        line = line.replace(f"\x1b[{code}m", "")
    return line


def test_an_error_and_its_hint() -> None:
    """An error is one line on stderr and a hint another, escaped"""
    stream = io.StringIO()
    plain.print_error(Unavailable("machine 'x\x1b[31m' is not known", hint="use local"), stream)
    assert stream.getvalue() == "memtopo: error: machine 'x\\x1b[31m' is not known\nmemtopo: hint: use local\n"


def test_messages_need_no_rich() -> None:
    """Errors and diagnostics are shown without importing rich"""
    script = "import sys; from memtopo.output import plain, diagnostics, json; sys.exit('rich' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": "."}, check=False).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_of_a_pipe(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool) -> None:
    """A pipe has no colour unless FORCE_COLOR wants it, and never against NO_COLOR"""
    _environment(monkeypatch, variables)
    assert plain.colour(io.StringIO()) is wanted


@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("120", 120), ("3", 20), ("", 80), ("wide", 80), ("0", 80)])
def test_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int) -> None:
    """A pipe has 80 columns unless COLUMNS says otherwise"""
    _environment(monkeypatch, {} if columns is None else {"COLUMNS": columns})
    assert plain.width(io.StringIO()) == width


def test_a_poor_encoding_is_no_error() -> None:
    """What an encoding lacks is escaped"""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    plain.print_lines(["a … b"], stream)
    stream.flush()
    assert stream.buffer.getvalue() == b"a \\u2026 b\n"


def _environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
