from __future__ import annotations

import pytest

from memtopo.common.errors import UsageError
from memtopo.diagnostics import CODES
from memtopo.rules import selection
from tests.helpers.checked_specs import BAD, Checking


@pytest.mark.parametrize(
    ("select", "ignore", "reported"),
    [
        ([], [], ["MT301", "MT501"]),
        (["MT3"], [], ["MT301"]),
        (["mt501"], [], ["MT501"]),
        (["MT4,MT5"], [], ["MT501"]),
        (["MT3", "MT5"], ["MT301"], ["MT501"]),
        ([], ["MT5", "MT4"], ["MT301"]),
        (["MT"], ["MT"], []),
        (["MT3"], ["MT301"], []),
    ],
)
def test_codes_are_selected_and_ignored_by_prefix(
    checked: Checking, select: list[str], ignore: list[str], reported: list[str]
) -> None:
    """An ignored code is not selected."""
    found = checked({"bad.yaml": BAD}, chosen=selection(select, ignore))
    codes = {fault.code for result in found.results for fault in result.diagnostics}
    assert sorted(codes) == reported
    assert found.ok == ("MT301" not in reported)


def test_unreadable_files_are_reported_whatever_is_selected(checked: Checking) -> None:
    assert not checked({"bad.yaml": "a: ["}, chosen=selection(["MT5"], ["MT"])).ok


@pytest.mark.parametrize("code", ["MT999", "MT5O1", "5", "M", "E501", "mt30x", "\x1b", "MT0", "MT001"])
def test_unknown_codes_and_codes_that_cannot_be_ignored_are_wrong_usage(code: str) -> None:
    with pytest.raises(UsageError):
        selection(ignore=[code])
    if not code.startswith("MT0"):
        with pytest.raises(UsageError):
            selection(select=[code])


def test_a_misspelt_code_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        selection(["MT5O1"])
    assert "MT501" in str(caught.value.hint)


@pytest.mark.parametrize("code", CODES)
def test_every_code_can_be_selected(code: str) -> None:
    assert selection([code]).includes(code)
