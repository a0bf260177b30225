"""Environment of the tests of output, and specs that they check."""

from __future__ import annotations

import pytest

from tests.ci.conftest import checked, folder
from tests.cli.conftest import run_inline

__all__ = ["checked", "folder", "run_inline"]


@pytest.fixture(autouse=True)
def no_terminal_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that describe a terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
