from __future__ import annotations

import signal
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.common.text import display_width, numbered, printable, signal_name


@given(st.text(st.characters()))
def test_printable_text_has_no_control_or_format_character(text: str) -> None:
    """Nor surrogates or unassigned characters, whatever the text."""
    shown = printable(text)
    assert shown.isprintable()
    assert not {unicodedata.category(char) for char in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hot chunk", "hot chunk"),
        ("größe 𝒳 日本", "größe 𝒳 日本"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\t\r\n\0", "\\t\\r\\n\\x00"),
        ("\x85\xa0", "\\x85\\xa0"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_escapes_are_those_of_python(text: str, shown: str) -> None:
    """Printable characters are not escaped."""
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("größe", 5), ("日本", 4), ("e\u0301", 1), ("ｆ", 2), ("\u1112\u1161\u11ab", 2), ("𝒳", 1)],
)
def test_width_is_counted_in_columns(text: str, columns: int) -> None:
    """A wide character has two columns, a combining one none."""
    assert display_width(text) == columns


@pytest.mark.parametrize("number", range(1, signal.NSIG))
def test_every_signal_has_a_name(number: int) -> None:
    """The number stands for a signal without a name."""
    known = {each.value: each.name for each in signal.Signals}
    assert signal_name(number) == known.get(number, f"signal {number}")


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("page", ("page", None)),
        ("page.12", ("page", 12)),
        ("page.3@host:0", ("page.3@host:0", None)),
        ("page.0:4@staging", ("page.0:4@staging", None)),
        (".7", (".7", None)),
        ("", ("", None)),
    ],
)
def test_a_label_has_the_number_at_its_end(label: str, found: tuple[str, int | None]) -> None:
    assert numbered(label) == found
