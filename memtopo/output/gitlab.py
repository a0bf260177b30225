"""A check as GitLab's Code Quality report, which marks the lines in a merge request."""

from __future__ import annotations

from typing import Any

from memtopo.common.errors import MemtopoError
from memtopo.common.text import printable
from memtopo.output import json, validation
from memtopo.output.validation import Placed, fingerprints
from memtopo.rules.files import Checked

_SEVERITIES = {"error": "major", "warning": "minor"}


def lines(checked: Checked) -> list[str]:
    """One entry for each fault."""
    faults = validation.places(checked)
    entries = [_entry(fault, mark) for fault, mark in zip(faults, fingerprints(faults), strict=True)]
    return json.dumps(entries).splitlines()


def failure(error: MemtopoError) -> list[str]:
    """The report of a check that could not be made, which has no place for why."""
    del error
    return ["[]"]


def _entry(fault: Placed, mark: str) -> dict[str, Any]:
    diagnostic = fault.diagnostic
    return {
        "description": "; ".join(map(printable, validation.prose(diagnostic).split("\n"))),
        "check_name": diagnostic.code,
        "fingerprint": mark,
        "severity": _SEVERITIES[diagnostic.severity],
        "location": {
            "path": validation.from_top(fault.file),
            "lines": {"begin": fault.span.line if fault.span else 1},
        },
    }
