from __future__ import annotations

import signal
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.common.text import (
    display_width,
    ending,
    enumerated,
    nearest,
    numbered,
    only_near,
    output_line,
    plural,
    printable,
    process_name,
    signal_name,
)


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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::no", ":\\x3aerror::no"),
        (" \t::set-env name=x::y", " \\t::set-env name=x::y"),
        ("\x1b[31m::error::no", "\x1b[31m:\\x3aerror::no"),
        ("see a::b", "see a::b"),
        (
            "x ##[group]y ##vso[z] ##teamcity[w] ## heading",
            "x #\\x23[group]y #\\x23vso[z] #\\x23teamcity[w] ## heading",
        ),
        ("one\n::error::two", "one\\n::error::two"),
        ("\x1b]0;title\x07\x1b[31mred\x1b[0m", "\\x1b]0;title\\x07\x1b[31mred\x1b[0m"),
    ],
)
def test_no_text_in_a_styled_line_ends_it_or_commands_a_terminal_or_a_runner(line: str, shown: str) -> None:
    assert output_line(line, styled=True) == shown
    assert "\x1b" not in output_line(line)


@pytest.mark.parametrize(
    ("word", "known", "near", "only"),
    [
        ("GPU0", ["gpu1", "gpu0"], "gpu0", "gpu0"),
        ("weights", ["Weights", "WEIGHTS"], "Weights", None),
        ("wieghts", ["weights", "kv"], "weights", "weights"),
        ("page1", ["page2", "page3"], None, None),
        ("h200", ["h200x2", "h200x8", "local"], None, None),
        ("wr", ["r", "rw"], "rw", None),
        ("kvcache", ["kv", "weights"], "kv", None),
        ("kvcache", ["kv", "kvc"], "kvc", None),
        ("kvcache-of-gpu", ["kv", "kvc"], None, None),
        ("w", ["weights"], None, None),
        ("xyz", ["weights", "kv"], None, None),
    ],
)
def test_a_word_is_replaced_by_a_known_one_only_if_no_other_is_as_near(
    word: str, known: list[str], near: str | None, only: str | None
) -> None:
    assert (nearest(word, known), only_near(word, known)) == (near, only)


@pytest.mark.parametrize(("count", "text"), [(1, "a"), (2, "a or b"), (3, "a, b or c")])
def test_the_last_of_several_words_follows_the_conjunction(count: int, text: str) -> None:
    assert enumerated(["a", "b", "c"][:count]) == text


def test_a_process_ends_by_a_signal_or_with_a_status() -> None:
    found = ["was killed by SIGSEGV", "ended with status 0", "ended with status 3"]
    assert [ending(status) for status in (-signal.SIGSEGV, 0, 3)] == found


def test_a_process_of_another_pid_namespace_has_no_number() -> None:
    other = "a process of another pid namespace"
    assert [process_name(pid) for pid in (7, 0, None)] == ["process 7", other, other]


def test_a_word_that_is_less_similar_than_is_sure_enough_is_not_replaced() -> None:
    assert [only_near("wigths", ["weights"], sure=sure) for sure in (0.7, 0.95)] == ["weights", None]


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "error", "1 error"),
        (3000, "error", "3,000 errors"),
        (0, "process", "0 processes"),
        (1, "process", "1 process"),
    ],
)
def test_a_count_has_its_noun(count: int, noun: str, text: str) -> None:
    assert plural(count, noun) == text
