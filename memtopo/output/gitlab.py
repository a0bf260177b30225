"""Validation results as GitLab's Code Quality report, which annotates the lines in a merge request."""

from __future__ import annotations

from typing import Any

from memtopo.common.errors import MemtopoError
from memtopo.common.text import printable
from memtopo.language.located import Located
from memtopo.output import json, validation
from memtopo.output.validation import fingerprints
from memtopo.rules.files import Checked

_SEVERITIES = {"error": "major", "warning": "minor"}


def lines(checked: Checked) -> list[str]:
    """One entry for each diagnostic."""
    found = validation.all_located(checked)
    entries = [_entry(each, fingerprint) for each, fingerprint in zip(found, fingerprints(found), strict=True)]
    return json.dumps(entries).splitlines()


def failure(error: MemtopoError) -> list[str]:
    """The report of a validation that could not be made: empty, since the format has no field for an error."""
    del error
    return ["[]"]


def _entry(found: Located, fingerprint: str) -> dict[str, Any]:
    diagnostic = found.diagnostic
    return {
        "description": "; ".join(map(printable, validation.full_message(diagnostic).split("\n"))),
        "check_name": diagnostic.code,
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[diagnostic.severity],
        "location": {
            "path": validation.repository_path(found.file),
            "lines": {"begin": found.span.line if found.span else 1},
        },
    }
