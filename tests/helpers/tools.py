"""Programs that tests need and that not every machine has."""

from __future__ import annotations

import os
import shutil

import pytest


def tool(name: str) -> str:
    """Path of a program. Without it the test is skipped, but in CI it fails: `.ci/run` installs what is missing."""
    found = shutil.which(name)
    if not found and "CI" not in os.environ:
        pytest.skip(f"there is no {name} here")
    assert found, f"there is no {name} here, and tests in CI need it"
    return found
