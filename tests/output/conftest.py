"""Environment of the tests of output."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_terminal_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that describe a terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
