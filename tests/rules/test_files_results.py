"""Diagnostics of a file on several machines, and what a failure is."""

from __future__ import annotations

import pytest

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
    ("text_", "strict", "ok"),
    [(GOOD, True, True), (WARNED, False, True), (WARNED, True, False), (BAD, False, False), (BAD, True, False)],
)
def test_a_warning_is_a_failure_if_the_check_is_strict(checked: Checking, text_: str, strict: bool, ok: bool) -> None:
    found = checked({"good.yaml": GOOD, "x.yaml": text_}, strict=strict)
    assert (found.ok, [found.failed(file) for file in found.files]) == (ok, [False, not ok])
