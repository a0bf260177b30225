"""Environment of the tests of output, and specs that they check."""

from __future__ import annotations

import pytest

from tests.cli.conftest import run_inline
from tests.helpers.checked_specs import checked, folder

__all__ = ["checked", "folder", "run_inline"]


@pytest.fixture(autouse=True)
def no_terminal_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that describe a terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
