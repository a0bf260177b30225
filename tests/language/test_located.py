"""Diagnostics in the order of a text, and edits of it."""

from __future__ import annotations

import pytest

from memtopo.diagnostics.model import Diagnostic, Edit
from memtopo.language import read_text
from memtopo.language.located import edited, located, replacements

SPEC = """\
memtopo: 1
name: test   # a name
ranges: {kv: {size: 64MiB}}
chunks:
  hot:
    location: gpu0     # the first

    size: 64MiB
map: {kv: [hot]}
access: {kv: {gpu0: rw}}
"""


def test_diagnostics_are_in_the_order_of_the_text_and_those_without_a_place_come_first() -> None:
    document = read_text(SPEC.encode(), "spec.yaml")
    paths = (("map",), ("chunks", "hot", "size"), ("ranges", "kv"), ())
    found = located([Diagnostic(f"MT10{at}", "x", path) for at, path in enumerate(paths)], document)
    assert [each.diagnostic.path for each in found] == [(), *paths[2::-1]]
    assert [each.location for each in found] == ["spec.yaml", "spec.yaml:3:14", "spec.yaml:8:11", "spec.yaml:9:6"]


def test_edits_that_touch_are_made_and_those_that_overlap_are_not() -> None:
    """A value, and an entry that is added behind it."""
    document = read_text(b"chunks: {hot: {location: gpu0, size: 64MiB}}", "spec.yaml")
    path = "chunks", "hot"
    size, added = Edit((*path, "size"), "value", "64MiB", "2MiB"), Edit(path, "value", "", "handles: fd")
    found = replacements(document, [size, added])
    after = "chunks: {hot: {location: gpu0, size: 2MiB, handles: fd}}"
    assert edited(document.text, found.values()) == after
    assert replacements(document, [size, Edit(path, "value", "size: 64MiB", "size: 2MiB")]) == {}
    assert replacements(document, [added, Edit(path, "value", "", "handles: fabric")]) == {}


def test_edits_that_contradict_one_another_are_not_made() -> None:
    first, second = ("chunks", "hot", "size"), ("ranges", "kv", "size")
    document = read_text(SPEC.encode(), "spec.yaml")
    one, other, third = (Edit(*edit) for edit in (
        (first, "value", "64MiB", "32MiB"), (first, "value", "64MiB", "16MiB"), (second, "value", "64MiB", "8MiB"),
    ))  # fmt: skip
    made = replacements(document, [one, other, third])
    assert edited(SPEC, made.values()) == SPEC.replace("64MiB}", "8MiB}")
    both = [*replacements(document, [one, third]).values()]
    assert edited(SPEC, both * 2) == SPEC.replace("64MiB}", "8MiB}").replace("64MiB", "32MiB")


def test_a_key_is_added_once() -> None:
    document = read_text(SPEC.encode(), "spec.yaml")
    found = [
        replacements(document, [Edit(("chunks", "hot"), "value", "", f"{key}: fd")]) for key in ("size", "handles")
    ]
    assert [len(each) for each in found] == [0, 1]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_an_added_line_has_the_margin_and_the_end_of_the_others(ending: str, last: bool) -> None:
    """The last line of a text has no end before and after it."""
    before = SPEC.partition("map:")[0].rstrip() if last else SPEC
    document = read_text(before.replace("\n", ending).encode(), "spec.yaml")
    made = replacements(document, [Edit(("chunks", "hot"), "value", "", "handles: fd")])
    after = before.replace("    size: 64MiB", "    size: 64MiB\n    handles: fd")
    assert edited(document.text, made.values()) == after.replace("\n", ending)


def test_a_word_that_a_value_has_twice_is_not_replaced() -> None:
    """Nor a part of a longer word."""
    document = read_text(b"name: a-b a b b", "spec.yaml")
    edits = [Edit(("name",), "value", old, "c") for old in ("a", "b", "a-b", "a-")]
    made = replacements(document, edits)
    assert [edited(document.text, [each]) for each in made.values()] == ["name: a-b c b b", "name: c a b b"]
