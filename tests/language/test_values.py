"""Values that are read without positions are those of the parser, and no text is taken that it would report."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtopo.language import limits, read_text
from memtopo.language.characters import check_characters, decode
from memtopo.language.limits import ReadError
from memtopo.language.parser import Parser
from memtopo.language.positions import Lines
from memtopo.language.values import values
from memtopo.machine import load
from memtopo.rules.validation import validate
from tests.fuzz.mutation import mutations, seeds
from tests.helpers.examples import examples

ROOT = Path(__file__).parent.parent.parent
SPECS = sorted(ROOT.glob("specs/*.yaml"))


def parsed(text: str) -> tuple[dict[str, object], bool] | None:
    """Values that the parser finds, and whether it reports nothing; None if reading ends early."""
    parser = Parser(text, Lines(text))
    try:
        check_characters(text)
        root = parser.document()
    except ReadError:
        return None
    return dict(root), not parser.diagnostics.collected() and not parser.left_out


def agrees(data: bytes) -> bool:
    """Return whether a text is accepted; it then has the parser's values."""
    text, undecodable = decode(data)
    if undecodable:
        return False
    try:
        check_characters(text)
    except ReadError:
        return False
    if not (found := values(text)):
        return False
    assert parsed(text) == (found, True), text
    return True


def test_each_known_text_has_the_values_of_the_parser() -> None:
    taken = [agrees(data) for data in seeds()]
    assert sum(taken) > len(taken) // 3


def test_texts_that_were_changed_at_random_have_the_values_of_the_parser() -> None:
    taken = [agrees(data) for data in islice(mutations(7, seeds()), 1500)]
    assert True in taken
    assert False in taken


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2\n", "a: &x 1\n", "a: *x\n", "a: !!int 1\n", "<<: {a: 1}\n", "[a]: 1\n", "{a: 1}: 2\n", ": 1\n",
        '"": 1\n', 'a: "\\x1b"\n', '"\\x07": 1\n', "- a\n", "a\n", "", "# a\n", "a: 1\n---\nb: 2\n", "a: [1\n",
        'a: ["' + "]" * 200 + '", ' + "[" * 70 + "]" * 71, 'a: ["' + "]" * 20_000 + '", ' + "[" * 15_000 + "]" * 15_001,
        f"a: {{b{' ' * 1100}: c}}", 'a: {"' + "k" * 1000 + '"' + " " * 40 + ": c}", 'a: {"' + "k" * 1100 + '": [c]}',
        'a: {"": [c]}',
        "%TAG ! x\n---\na: 1\n", "a: 1\n...\nb: 2\n", "a: " + "[" * 64 + "]" * 64, "a: " + "x" * 65_537,
    ],
)  # fmt: skip
def test_what_the_parser_refuses_is_left_to_it(text: str) -> None:
    assert not agrees(text.encode())


def test_the_most_entries_are_taken_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtopo.language.values.MOST_ENTRIES", 5)
    assert values("a: [1, 2, 3]\nb: 1\n")
    assert values("a: [1, 2, 3]\nb: [1]\n") is None
    assert values("a: 1" + 6 * "\n") is None
    assert limits.MOST_ENTRIES == 1_000_000


def test_the_longest_text_is_taken_and_none_that_is_longer() -> None:
    assert agrees(("a: " + "x" * 65_536).encode())
    assert agrees(("a: {b: [c, " + "x" * 65_536 + "]}").encode())
    assert not agrees(("a: {b: [c, " + "x" * 65_537 + "]}").encode())
    assert agrees(("a: [" + "x, " * 65_536 + "x]").encode())


def test_half_of_the_deepest_levels_are_taken_of_lines_and_of_brackets() -> None:
    half = limits.DEEPEST // 2
    for deepest, taken in ((half, True), (half + 1, False)):
        lines = "".join(f"{' ' * level}a:\n" for level in range(deepest))
        assert agrees(lines.encode()) is taken
        assert agrees(f"a: {'[' * deepest}{']' * deepest}\n".encode()) is taken
    assert agrees(f"a: [{'[], ' * limits.DEEPEST}[]]\n".encode())


@pytest.mark.parametrize(
    "text",
    [
        "a: b # c\n", "a:\n\n# c\n  b: c", "a:\n- b\n- c\nd:\n", "a:\n  - b: c\n    d: [e]\n  - f: g", "  a: b\n  c: d",
        "a: {b: c, d: e}\n", "a: { b: c }\n", "a: {b: [c,d], e: {}} # f\n", "a: {b:   c}\n", "a.0:4: [-1, $b * 2]\n",
        "a: host:0\n", "a: 'b: c # d'\n", 'a: ["{b", ", ", ""]\n', "a: b\r\nc:\r\n  - d\r\n", "a: /dev/b\nc: 1 granule",
    ],
)  # fmt: skip
def test_each_usual_form_of_a_line_is_taken(text: str) -> None:
    assert agrees(text.encode())


STARTS = ["", "- ", "a:", "a: ", "b: ", "c.0:2: ", "- a: ", "-", "#", "- - ", "? ", "a : ", "$a: "]
VALUES = [
    "", "b", "b c", "host:0", "-1", "- 1", "$a * 2", "{a: b, c: d}", "{a: b, a: c}", "{a: b,c}", "{a:b}",
    "{ a: [b, c] , d: {} }", "{a: b, }", "[a: b]", "{: b}", "{a}", "[a, b", '"b: c"', "''", "'a' b", "b: c", "b #c",
    "b:", "é", "...", "|", "%a", "\tb", "a  b", '{"a": "b, c"}', "{a b: c}", "[a]: b",
]  # fmt: skip
ENDS = ["", "", " ", " # c", "#c", "\t"]


@given(st.lists(st.tuples(st.integers(0, 4), *map(st.sampled_from, (STARTS, VALUES, ENDS))), max_size=8))
@settings(max_examples=examples(1000))
def test_lines_of_any_form_have_the_values_of_the_parser(lines: list[tuple[int, str, str, str]]) -> None:
    agrees("\n".join(f"{' ' * column}{start}{value}{end}" for column, start, value, end in lines).encode())


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_positions_are_those_of_the_parser(path: Path) -> None:
    document = read_text(path.read_bytes(), path.name)
    parser = Parser(document.text, Lines(document.text))
    root = parser.document()
    for section, value in root.items():
        for name in value if isinstance(value, dict) else ():
            for at in ("key", "value"):
                wanted = parser.positions.find((section, name), at, root)
                assert document.positions.find((section, name), at, root) == wanted


def test_a_valid_spec_is_read_without_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtopo.language.reader._parser", None)
    document = read_text((ROOT / "specs" / "quickstart.yaml").read_bytes(), "quickstart.yaml")
    assert validate(document, load("h200x2")).geometry
