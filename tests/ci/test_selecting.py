from __future__ import annotations

import pytest

from memtopo.common.errors import UsageError
from memtopo.diagnostics.codes import CODES
from memtopo.rules.files import selection
from tests.ci.conftest import BAD, Checking


@pytest.mark.parametrize(
    ("select", "ignore", "told"),
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
def test_selection(checked: Checking, select: list[str], ignore: list[str], told: list[str]) -> None:
    """Codes are selected and ignored by what they begin with; what is ignored is not selected"""
    found = checked({"bad.yaml": BAD}, chosen=selection(select, ignore))
    codes = {fault.code for result in found.results for fault in result.diagnostics}
    assert sorted(codes) == told
    assert found.ok == ("MT301" not in told)


def test_what_is_not_read(checked: Checking) -> None:
    """That a file cannot be read is told whatever is selected"""
    assert not checked({"bad.yaml": "a: ["}, chosen=selection(["MT5"], ["MT"])).ok


@pytest.mark.parametrize("code", ["MT999", "MT5O1", "5", "M", "E501", "mt30x", "\x1b", "MT0", "MT001"])
def test_codes_that_are_none(code: str) -> None:
    """What begins no code, or cannot be ignored, is wrong usage"""
    with pytest.raises(UsageError):
        selection(ignore=[code])
    if not code.startswith("MT0"):
        with pytest.raises(UsageError):
            selection(select=[code])


def test_the_nearest_is_named() -> None:
    """A misspelt code is answered with the one that was meant"""
    with pytest.raises(UsageError) as caught:
        selection(["MT5O1"])
    assert "MT501" in str(caught.value.hint)


@pytest.mark.parametrize("code", CODES)
def test_every_code(code: str) -> None:
    """Every code can be selected"""
    assert selection([code]).includes(code)
