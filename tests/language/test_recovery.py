"""The rest of a text after a syntax error: it is checked, and nothing is wrong with it because of the error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.language import Document, read_text
from memtopo.rules import validate
from tests.helpers.specs import ROOT

SPECS = sorted((ROOT / "specs").glob("*.yaml"))
SPEC = """\
memtopo: 1
name: two
ranges:
  kv: {size: 2MiB}
chunks:
  page:
    location: gpu0
    size: 2MiB
map: {kv: [page]}
access: {kv: {gpu9: rw}}
"""


def read(text: str) -> Document:
    return read_text(text.encode(), "spec.yaml")


def broken(text: str) -> Iterator[str]:
    """Texts with one syntax error each: a word, a brace, a colon, a blank or the indentation of one line is wrong."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        for wrong in (
            line.replace(": ", ": @", 1),
            line.rstrip("}])"),
            line.replace(": ", " ", 1),
            f"\t{line.lstrip()}",
        ):
            if wrong != line and not line.lstrip().startswith("#"):
                yield "\n".join([*lines[:number], wrong, *lines[number + 1 :]])


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_syntax_error_in_a_valid_spec_has_no_other_errors(path: Path) -> None:
    known, recovered = machine.load("h200x4"), 0
    for text in list(broken(path.read_text()))[::4]:
        document = read(text)
        if document.root and [each for each in document.diagnostics if each.code == "MT005"]:
            recovered += 1
            found = {each.code for each in validate(document, known).diagnostics if each.severity == "error"}
            assert found <= {"MT005", "MT006", "MT007"}, text
    assert recovered


@pytest.mark.parametrize(
    ("written", "instead", "line"),
    [
        ("name: two", "name: @two", 2),
        ("  kv: {size: 2MiB}", "  kv: {size: 2MiB", 5),
        ("    location: gpu0", "\tlocation: gpu0", 7),
        ("    size: 2MiB", "     size: 2MiB", 8),
        ("[page]", "[page[:]]", 9),
        ("map: {kv: [page]}", 'map: {kv: ["page]}', 11),
    ],
)
def test_what_follows_a_syntax_error_is_checked_at_its_own_place(written: str, instead: str, line: int) -> None:
    document = read(SPEC.replace(written, instead, 1))
    (wrong,) = document.diagnostics
    assert wrong.span
    assert (wrong.code, wrong.span.line) == ("MT005", line)
    rest = [each for each in validate(document, machine.load("h200x2")).diagnostics if each.severity == "error"]
    found = [(each.code, document.span(each.path, each.at)) for each in rest if each.code != "MT005"]
    assert found == ([] if "{size: 2MiB" in instead else [("MT401", (10, 15, 10, 19))])


def test_a_long_text_is_not_parsed_again() -> None:
    assert read(f"a: @1\n# {'x' * (64 << 10)}\n").root == {}
