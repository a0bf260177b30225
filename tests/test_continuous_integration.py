"""Rules of the tests that hold in CI alone."""

from __future__ import annotations

import pytest

from tests.helpers.tools import tool


def test_a_missing_program_skips_a_test_but_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no no-such-program here"):
        tool("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="there is no no-such-program here"):
        tool("no-such-program")
