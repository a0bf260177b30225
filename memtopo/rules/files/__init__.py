"""Validation of many specs against many machines: collecting files, selecting codes, and the results."""

from __future__ import annotations

from memtopo.rules.files.checks import (
    Checked,
    File,
    Fixed,
    Result,
    Selection,
    SharedDiagnostic,
    Variant,
    check,
    check_document,
    fixed,
    read,
    selection,
)
from memtopo.rules.files.paths import Source, collect

__all__ = [
    "Checked",
    "File",
    "Fixed",
    "Result",
    "Selection",
    "SharedDiagnostic",
    "Source",
    "Variant",
    "check",
    "check_document",
    "collect",
    "fixed",
    "read",
    "selection",
]
