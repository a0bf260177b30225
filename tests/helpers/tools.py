"""Programs that tests need and that not every machine has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def tool(name: str) -> str:
    """Path of a program. Without it the test is skipped, but in CI it fails: `.ci/run` installs what is missing."""
    found = shutil.which(name)
    if not found and "CI" not in os.environ:
        pytest.skip(f"there is no {name} here")
    assert found, f"there is no {name} here, and tests in CI need it"
    return found


def path_with_quick_compiler(folder: Path) -> str:
    """Return a PATH that begins with a folder, into which a compiler of C is written that does not optimise."""
    if found := shutil.which("cc"):
        folder.mkdir(exist_ok=True)
        program = folder / "cc"
        program.write_text(f'#!/bin/sh\nexec {found} "$@" -O0\n')
        program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
