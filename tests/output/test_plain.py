"""Lines and errors without rich: colours and width of a stream, and characters that its encoding lacks."""

from __future__ import annotations

import io

import pytest

from memtopo.common.errors import MemtopoError
from memtopo.output import plain


class Terminal(io.StringIO):
    """A stream that says it is a terminal, of a size that is not known."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_a_stream_gets_colours_as_its_user_wants_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], on_terminal: bool, in_pipe: bool
) -> None:
    for name, value in ({"TERM": "xterm"} | dict.fromkeys(("NO_COLOR", "FORCE_COLOR"), "") | variables).items():
        monkeypatch.setenv(name, value)
    if "NO_COLOR" not in variables:
        monkeypatch.delenv("NO_COLOR")
    assert (plain.colour(Terminal()), plain.colour(io.StringIO())) == (on_terminal, in_pipe)


@pytest.mark.parametrize(
    ("columns", "width"),
    [("", 80), ("0", 80), ("-5", 80), ("x", 80), ("٣٣", 80), ("5", 20), ("120", 120), ("1001", 1000), ("9" * 9, 1000)],
)
def test_a_stream_is_as_wide_as_its_user_says_within_limits(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert plain.width(io.StringIO()) == width


def test_an_error_has_its_details_before_its_hint_and_no_text_of_it_is_a_control() -> None:
    stream = io.StringIO()
    plain.print_error(MemtopoError("no \x1b[2J", hint="a hint", details=("one", "two")), stream)
    assert stream.getvalue() == "memtopo: error: no \\x1b[2J\n  one\n  two\nmemtopo: hint: a hint\n"
    plain.print_error(MemtopoError("no"), alone := io.StringIO())
    assert alone.getvalue() == "memtopo: error: no\n"


def test_characters_that_an_encoding_lacks_are_escaped() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    plain.print_document(["größe", "b"], stream)
    stream.flush()
    assert stream.buffer.getvalue() == b"gr\\xf6\\xdfe\nb\n"


def test_only_a_text_is_painted() -> None:
    found = [plain.paint(text, "error", colour=colour) for text, colour in (("x", True), ("x", False), ("", True))]
    assert found == ["\x1b[1;31mx\x1b[0m", "x", ""]
