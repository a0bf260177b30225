"""Suggestions with one right answer: once it is written, its place has no other error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.diagnostics.model import Diagnostic
from memtopo.language import Document, read_file, read_text
from memtopo.machine import Machines, load
from memtopo.rules import validate
from tests.helpers.machines import noted
from tests.rules.test_bad import BAD

_ONE = re.compile(
    r"did you mean '?(?P<meant>[^'?]+)'?\?(?: the end is exclusive: .*)?|write (?P<value>[$\w.-]+|[0-9]+ granules)"
    r"|write '(?P<key>[\w-]+): (?P<entry>[^']+)'.*|the largest (?:size|count|max) that fits is .*"
)
"""Helps that have one right answer, alone or before a comment on it."""

_AMOUNT = re.compile(r"(?:the largest|')\W*(size|count|max)(?: that fits is |: )([\w%]+)")
"""Amounts that help for too much memory has, each with its key."""

SPEC = """\
memtopo: 1
name: all
machines: [h200x2]
params: {pages: 4}
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: $pages}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""
WRONG = [
    ("count: $pages", "count: '${pages}'"), ("count: $pages", "count: '$(pages)'"), ("[page]", "['page[0:4]']"),
    ("[page]", "[page.0-4]"), ("[page]", "['page[:]']"), ("{size: 8MiB}", "8MiB"), ("{size: 8MiB}", "8 MB"),
    ("{gpu0: rw}", "rw"), ("{gpu0: rw}", "gpu1"), ("gpu0: rw", "gpu0: ro"), ("location: gpu0", "location: cuda:1"),
    ("location: gpu0", "location: GPU 1"), ("gpu0: rw", "gpu_1: rw"), ("[h200x2]", "[H200x2]"),
    ("pages: 4", "pages: 4.0"),
    ("count: $pages", "count: 0x4"), ("count: $pages", "count: 1e0"), ("count: $pages", "count: 2 * 2"),
    ("size: 2MiB, count: $pages", "size: 2MiB, count: 1000000"), ("size: 2MiB, count: $pages", "size: 1TiB"),
    ("{location: gpu0, size: 2MiB", "{location: [gpu0, gpu1], size: 100GiB"), ("size: 2MiB", "size: 2.0MiB"),
    ("count: $pages", "count: $page"), ("count: $pages", "count: $pages, rdma: yes"), ("[page]", "[pages]"),
]  # fmt: skip
NO_ANSWER = [
    ("gpu0: rw", "'cuda:2': rw"), ("location: gpu0", "location: gpu:2"), ("[h200x2]", "[a100x8]"),
    ("[h200x2]", "[h200x16]"), ("count: $pages", "count: -1"), ("count: $pages", "count: 2k"),
    ("size: 2MiB", "size: -1"),
    ("count: $pages", "count: 2 - 2"), ("size: 2MiB", "size: 1.3MiB"),
]  # fmt: skip
"""Replacements of a part of the spec; of the second list, several answers are right."""

TOO_LARGE = [
    ("fill", "gpu0, size: 2MiB, count: 100000", 2), ("fill", "gpu0, size: 200GiB", 2),
    ("8GiB", "gpu0, size: 2MiB, count: 100000", 1), ("150GiB", "gpu0, size: 2MiB, count: 100000", 2),
    ("fill, count: 64", "gpu0, size: 2MiB, count: 128000", 2), ("fill", "[gpu0, gpu1], size: 3GiB, count: 99", 4),
    ("200GiB, elastic: true", "gpu0, size: 2MiB, count: {min: 9, max: 100000}", 2),
    ("200GiB, elastic: true", "gpu0, size: 2MiB, count: {min: 71000, max: 100000}", 1),
    ("200GiB, elastic: true", "gpu0, size: 2MiB, count: {min: 80000, max: 100000}", 0),
    ("fill", "gpu0, size: 2MiB, count: 20000}, b: {location: gpu0, size: 110GiB", 2),
    ("fill", "gpu0, size: 2MiB, count: 100000}, b: {location: gpu0, size: 90%", 0),
    ("150GiB", "gpu0, size: 2MiB, count: fill", 0), ("fill", "'host:0', size: 2GiB, count: 1000", 0),
]  # fmt: skip
"""Range, chunks that are too large for it or for the machine, and number of amounts that are suggested."""


def _suggestion(document: Document, wrong: Diagnostic) -> str | None:
    """Text in which a suggestion is followed; None without one."""
    match = _ONE.fullmatch(wrong.help or "")
    edit = wrong.edit
    if edit is None and (match is None or wrong.code == "MT402" or match["key"] not in (None, *wrong.path[-1:])):
        return None
    place = document.offsets(wrong.path, wrong.at) if edit is None else document.offsets(edit.path, edit.at)
    if place is None or (edit and not edit.old):
        return None
    start, end = place
    written = document.text[start:end]
    new = written.replace(edit.old, edit.new) if edit else next(filter(None, map(match.group, _GROUPS)))  # type: ignore[union-attr]
    return document.text[:start] + new + document.text[end:]


_GROUPS = ("meant", "value", "entry")


def _amounts(document: Document, wrong: Diagnostic) -> Iterator[str]:
    """Texts with each amount that help for too much memory suggests."""
    for key, amount in _AMOUNT.findall(wrong.help or "") if wrong.code == "MT402" else ():
        entry = wrong.path[:-1]
        place = document.offsets((*entry, *{"max": ("count", "max")}.get(key, (key,))), "value")
        assert place
        yield document.text[: place[0]] + amount + document.text[place[1] :]


def _follow(document: Document, machine: Machines) -> int:
    """Follow each suggestion on its own, and return the number of them."""
    followed = 0
    for wrong in validate(document, machine).diagnostics:
        texts = [*_amounts(document, wrong), *filter(None, [_suggestion(document, wrong)])]
        for text in texts if wrong.severity == "error" else ():
            again = read_text(text.encode(), document.name)
            errors = [each for each in validate(again, machine).diagnostics if each.severity == "error"]
            assert wrong.path not in [each.path for each in errors], (wrong, text, errors)
            assert not {each.code for each in errors} & {"MT314", "MT407", "MT803"}, (wrong, text, errors)
            followed += 1
    return followed


def test_no_suggestion_for_a_wrong_example_fails_next() -> None:
    followed = sum(_follow(read_file(path), noted(Path(path).read_text(errors="replace"))) for path in BAD)
    assert followed


@pytest.mark.parametrize(("right", "wrong"), WRONG)
def test_a_suggestion_is_valid_in_its_place(right: str, wrong: str) -> None:
    assert right in SPEC
    assert _follow(read_text(SPEC.replace(right, wrong, 1).encode(), "spec.yaml"), load("h200x2"))


@pytest.mark.parametrize(("size", "page", "amounts"), TOO_LARGE)
def test_amounts_that_are_suggested_for_too_much_memory_are_valid(size: str, page: str, amounts: int) -> None:
    text = f"memtopo: 1\nname: all\nranges: {{kv: {{size: {size}}}}}\nchunks: {{page: {{location: {page}}}}}\n"
    text += "map: {kv: [page]}\n" if "elastic" not in size else ""
    assert _follow(read_text(f"{text}access: {{kv: {{gpu0: rw}}}}\n".encode(), "spec.yaml"), load("h200x2")) == amounts


@pytest.mark.parametrize(("right", "wrong"), NO_ANSWER)
def test_a_value_without_one_right_answer_has_help_that_chooses_none(right: str, wrong: str) -> None:
    document = read_text(SPEC.replace(right, wrong, 1).encode(), "spec.yaml")
    (found, *_) = [each for each in validate(document, load("h200x2")).diagnostics if each.severity == "error"]
    assert found.help
    assert (found.edit, _ONE.fullmatch(found.help)) == (None, None)
