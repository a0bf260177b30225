"""Diagnostics of a file on several machines, and what a failure is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memtopo.diagnostics.model import Diagnostic
from memtopo.language import read_text
from memtopo.rules.files import CheckedFile, Result
from tests.helpers.checked_specs import BAD, GOOD, WARNED, Checking
from tests.helpers.ci_forms import text


def test_a_diagnostic_of_all_machines_is_reported_once_without_machines(checked: Checking) -> None:
    found = checked({"x.yaml": BAD}, "h100x1", "h200x2", "h200x4")
    output = text("concise", found)
    assert len(output.splitlines()) == 2
    assert "h100x1" not in output
    (file,) = found.files
    assert [each.only for each in file.diagnostics()] == [(), ()]


@pytest.mark.parametrize(
    ("given", "notes", "help"),
    [
        ([("n", "h"), ("n", "h"), ("n", "h")], ("n",), "h"),
        ([("n m", "h"), ("n m", "h"), ("n", "h")], ("n", "on a, b: m"), "h"),
        ([("n", "h"), ("m", "h"), ("m", "k")], ("on a: n", "on b, c: m", "on a, b: h", "on c: k"), None),
        ([("n", None), ("n", "h")], ("n", "on b: h"), None),
    ],
)
def test_notes_and_help_of_some_machines_only_have_their_names(
    given: Sequence[tuple[str, str | None]], notes: tuple[str, ...], help: str | None
) -> None:
    document = read_text(GOOD.encode(), "x.yaml")
    each = Diagnostic("MT301", "message", ("chunks",))
    found = [each._replace(notes=tuple(words.split()), help=own) for words, own in given]
    results = tuple(Result(document, name, (own,)) for name, own in zip("abc", found, strict=False))
    (shared,) = CheckedFile(document, results).diagnostics()
    assert shared.diagnostic == each._replace(notes=notes, help=help)


@pytest.mark.parametrize(
    ("text_", "strict", "ok"),
    [(GOOD, True, True), (WARNED, False, True), (WARNED, True, False), (BAD, False, False), (BAD, True, False)],
)
def test_a_warning_is_a_failure_if_the_check_is_strict(checked: Checking, text_: str, strict: bool, ok: bool) -> None:
    found = checked({"good.yaml": GOOD, "x.yaml": text_}, strict=strict)
    assert (found.ok, [found.failed(file) for file in found.files]) == (ok, [False, not ok])
