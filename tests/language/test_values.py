"""Values that are read without positions are those of the parser, and no text is taken that it would report."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from memtopo.language import limits, read_text
from memtopo.language.characters import check_characters, decode
from memtopo.language.limits import ReadError
from memtopo.language.parser import Parser, check_end, check_start
from memtopo.language.positions import Lines
from memtopo.language.values import values
from memtopo.machine import load
from memtopo.rules.validation import validate
from tests.fuzz.mutation import mutations, seeds

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
        check_start(text, Lines(text))
        if not (found := values(text)):
            return False
        check_end(text, found.end, Lines(text), explicit=found.explicit)
    except ReadError:
        return False
    assert parsed(text) == (found.root, True), text
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
        "%TAG ! x\n---\na: 1\n", "a: 1\n...\nb: 2\n", "a: " + "[" * 64 + "]" * 64, "a: " + "x" * 65_537,
    ],
)  # fmt: skip
def test_what_the_parser_refuses_is_left_to_it(text: str) -> None:
    assert not agrees(text.encode())


def test_the_most_entries_are_taken_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtopo.language.values.MOST_ENTRIES", 5)
    assert values("a: [1, 2, 3]\nb: 1\n")
    assert values("a: [1, 2, 3]\nb: [1]\n") is None
    assert limits.MOST_ENTRIES == 1_000_000


def test_depth_and_length_have_the_limits_of_the_parser() -> None:
    assert agrees(("a: " + "[" * 63 + "]" * 63).encode())
    assert agrees(("a: " + "x" * 65_536).encode())


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
    monkeypatch.setattr("memtopo.language.reader.Parser", None)
    document = read_text((ROOT / "specs" / "quickstart.yaml").read_bytes(), "quickstart.yaml")
    assert validate(document, load("h200x2")).geometry
