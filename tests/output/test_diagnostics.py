from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from memtopo.common.errors import Unavailable
from memtopo.common.text import display_width
from memtopo.diagnostics.model import Diagnostic, Label, TextSpan
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
    "chunk 'hot': 33MiB is not a multiple of its granularity, 2MiB",
    ("chunks", "hot", "size"),
    notes=("the granularity is that of gpu0 for chunks that are shared as file descriptors",),
    help="write 32MiB or 34MiB, or add 'round: up'",
)
OVERLAP = Diagnostic(
    "MT304", "two mappings overlap in 'kv'", ("map", "kv"), labels=(Label("declared here", ("chunks", "hot"), "key"),)
)
UNUSED = Diagnostic("MT501", "chunk 'cold' is mapped nowhere", ("chunks", "cold"), "key")


def spec_document(text: str = SPEC, name: str = "spec.yaml") -> Document:
    return read_text(text.encode(), name)


def on_line(line: str, needle: str, *labels: tuple[str, str]) -> tuple[Document, Diagnostic]:
    """A text of one line, and a fault at a needle in it."""
    places = tuple(Label(text, (), span=_span(line, at)) for at, text in labels)
    return spec_document(line), Diagnostic("MT103", "wrong", span=_span(line, needle), labels=places)


def _span(line: str, needle: str) -> TextSpan:
    column = line.index(needle) + 1
    return TextSpan(1, column, 1, column + len(needle))


def column_of(row: str, needle: str) -> int:
    return display_width(row[: row.index(needle)])


def test_diagnostics_are_sorted_with_source_notes_help_and_count() -> None:
    assert "\n".join(diagnostics.text([UNUSED, OVERLAP, SIZE], spec_document())) == (
        """\
spec.yaml:4:31: error[MT301]: chunk 'hot': 33MiB is not a multiple of its granularity, 2MiB
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


def test_a_concise_diagnostic_is_its_first_line() -> None:
    assert diagnostics.concise([OVERLAP, SIZE], spec_document()) == [
        "spec.yaml:4:31: error[MT301]: chunk 'hot': 33MiB is not a multiple of its granularity, 2MiB",
        "spec.yaml:7:7: error[MT304]: two mappings overlap in 'kv'",
    ]


def test_a_diagnostic_without_position_comes_first_and_names_the_file() -> None:
    """Labels without a position are notes."""
    unread = Document("gone.yaml")
    fault = Diagnostic("MT001", "the file cannot be read: no such file", labels=(Label("looked here", ("a",)),))
    assert diagnostics.text([fault], unread) == [
        "gone.yaml: error[MT001]: the file cannot be read: no such file",
        "   = note: looked here",
        "",
        "1 error in gone.yaml",
    ]


def test_no_diagnostics_print_nothing() -> None:
    assert diagnostics.text([], spec_document()) == []


@pytest.mark.parametrize(
    "before", ["", "世界: ", "e\u0301e\u0301: ", "\x1b[31m", "\u202eabc", "a\tb ", "🙂 "], ids=ascii
)
def test_underlines_are_aligned_despite_wide_combining_and_control_characters(before: str) -> None:
    page, fault = on_line(f"{before}WRONG: 1", "WRONG")
    _, _, source, underline, *_ = diagnostics.text([fault], page)
    assert column_of(source, "WRONG") == column_of(underline, "^^^^^")


def test_wide_characters_have_two_underline_signs() -> None:
    page, fault = on_line("a: 世界!", "世界")
    assert diagnostics.text([fault], page)[3].strip(" |") == "^^^^"


def test_an_empty_span_has_one_sign() -> None:
    """Also after the end of the line."""
    fault = Diagnostic("MT005", "the text is not YAML", span=TextSpan(1, 3, 1, 3))
    assert diagnostics.text([fault], spec_document("a:"))[2:4] == [" 1 | a:", "   |   ^"]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("char", ["x", "世", "\x07", "e\u0301"])
def test_long_lines_are_cut_around_each_span(char: str, width: int) -> None:
    page, fault = on_line(f"{char * 3000}WRONG{char * 3000}HERE{char * 3000}", "WRONG", ("HERE", "and here"))
    rows = diagnostics.text([fault], page, width=width)[2:-2]
    sources = [row for row in rows if row.startswith(" 1 | ")]
    assert [("WRONG" in row, "HERE" in row) for row in sources] == [(True, False), (False, True)]
    assert all(row.startswith(" 1 | …") and row.endswith("…") for row in sources)
    assert max(map(display_width, rows)) <= width
    assert column_of(rows[0], "WRONG") == column_of(rows[1], "^^^^^")
    assert column_of(rows[2], "HERE") == column_of(rows[3], "----")


def test_a_span_wider_than_the_terminal_is_shown_from_its_start() -> None:
    page, fault = on_line(f"key: {'v' * 500}", "v" * 500)
    source, underline = diagnostics.text([fault], page, width=40)[2:4]
    assert display_width(source) <= 40
    assert column_of(source, "v") == column_of(underline, "^")


def test_many_combining_characters_do_not_lengthen_a_line() -> None:
    page, fault = on_line("a" + "\u0301" * 100_000 + "WRONG", "WRONG")
    assert max(map(len, diagnostics.text([fault], page))) < 1000


def test_labels_without_room_get_a_row_of_their_own() -> None:
    page, fault = on_line("a: 1" + " " * 60 + "b: 2", "a", ("b", "this is where the other one was declared"))
    rows = diagnostics.text([fault], page)
    assert max(map(display_width, rows)) <= 80
    assert rows[5].endswith("this is where the other one was declared")


def test_control_characters_of_texts_names_and_messages_are_escaped() -> None:
    evil = "\x1b[31m\x07\u202e\x9b"
    fault = Diagnostic(
        "MT103", evil, span=TextSpan(1, 1, 1, 3), labels=(Label(evil, ()),), notes=(f"a{evil}",), help=f"b{evil}"
    )
    shown = "\n".join(diagnostics.text([fault], spec_document(f"a: {evil}", name=evil)))
    assert all(char == "\n" or char.isprintable() for char in shown)


def test_colour_changes_no_text_and_each_style_is_closed() -> None:
    plainly, coloured = (diagnostics.text([SIZE], spec_document(), colour=colour) for colour in (False, True))
    assert "\x1b[1;31merror[MT301]\x1b[0m" in coloured[0]
    assert plainly == [_without_colour(line) for line in coloured]


def _without_colour(line: str) -> str:
    for code in ("1;31", "1;34", "1;36", "34", "1", "0"):
        line = line.replace(f"\x1b[{code}m", "")
    return line


def test_an_error_and_its_hint_are_two_escaped_lines_on_stderr() -> None:
    stream = io.StringIO()
    plain.print_error(Unavailable("machine 'x\x1b[31m' is not known", hint="use local"), stream)
    assert stream.getvalue() == "memtopo: error: machine 'x\\x1b[31m' is not known\nmemtopo: hint: use local\n"


def test_errors_and_diagnostics_do_not_import_rich() -> None:
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
def test_a_pipe_has_colour_only_with_force_color(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    """NO_COLOR takes precedence."""
    _environment(monkeypatch, variables)
    assert plain.colour(io.StringIO()) is wanted


@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("120", 120), ("3", 20), ("", 80), ("wide", 80), ("0", 80)])
def test_a_pipe_has_80_columns_or_those_of_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    _environment(monkeypatch, {} if columns is None else {"COLUMNS": columns})
    assert plain.width(io.StringIO()) == width


def test_characters_missing_from_an_encoding_are_escaped() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    plain.print_lines(["a … b"], stream)
    stream.flush()
    assert stream.buffer.getvalue() == b"a \\u2026 b\n"


def _environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
