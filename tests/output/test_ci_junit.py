from __future__ import annotations

from pathlib import Path

from memtopo.common.errors import Unavailable
from memtopo.output import formats
from memtopo.rules.files import collect
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking, check
from tests.helpers.ci_forms import junit, text
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT


def test_junit_has_a_suite_per_machine_and_a_case_per_file(checked: Checking) -> None:
    """The case fails if the spec is invalid."""
    found = junit(text("junit", checked({"a.yaml": GOOD, "b.yaml": TWO_GPUS, "c.yaml": BAD}, "h100x1", "h200x2")))
    assert (found.tests, found.failures, found.errors) == (6, 3, 0)
    fared = {suite.name: {case.name: case.is_passed for case in suite} for suite in found}
    assert fared == {
        "h100x1": {"a.yaml": True, "b.yaml": False, "c.yaml": False},
        "h200x2": {"a.yaml": True, "b.yaml": True, "c.yaml": False},
    }
    assert [(suite.tests, suite.failures) for suite in found] == [(3, 2), (3, 1)]


def test_junit_failure_has_summary_worst_code_and_all_diagnostics(checked: Checking) -> None:
    """They are its message, its type and its text."""
    (suite,) = junit(text("junit", checked({"specs/bad.yaml": BAD})))
    (case,) = suite
    (failure,) = case.result
    assert (case.name, case.classname) == ("specs/bad.yaml", "memtopo.h200x2")
    assert (failure.message, failure.type) == ("1 error, 1 warning", "MT301")
    assert "specs/bad.yaml:4:31: error[MT301]" in failure.text
    assert " 4 |   hot: {location: gpu0, size: 3MiB}" in failure.text
    assert "warning[MT501]" in failure.text


def test_junit_warnings_are_output_and_failures_if_strict(checked: Checking) -> None:
    for strict in (False, True):
        found = junit(text("junit", checked({"x.yaml": WARNED}, strict=strict)))
        (suite,) = found
        (case,) = suite
        assert case.is_passed != strict
        assert found.failures == suite.failures == strict
        assert ("MT501" in (case.system_out or "")) != strict


def test_junit_reports_of_all_bad_specs_fit_the_schema(folder: Path) -> None:
    found = junit(text("junit", check(collect([str(ROOT / "tests" / "bad")]), {"two": invented(2)})))
    assert found.failures > 30


def test_a_failed_check_is_one_junit_case_with_the_error() -> None:
    (suite,) = junit("\n".join(formats.failure("junit", Unavailable("no <GPU>", hint="a & b"))))
    (case,) = suite
    (error,) = case.result
    assert (error.message, error.type, error.text) == ("no <GPU>", "exit 3", "no <GPU>\nhint: a & b")
