"""Validation of many specs against many machines: collecting files, selecting codes, and the results."""

from __future__ import annotations

from memtopo.rules.files.checks import Selection, Variant, check, check_document, read, selection
from memtopo.rules.files.fixes import Fixed, fixed
from memtopo.rules.files.paths import Source, collect
from memtopo.rules.files.results import Checked, File, Result, SharedDiagnostic

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
