"""Validation of a document against a machine: all diagnostics, and the geometry if there are no errors."""

from __future__ import annotations

from typing import NamedTuple

from memtopo import rules, spec
from memtopo.common.garbage_collection import collector_paused
from memtopo.diagnostics.model import Diagnostic, Span, has_errors
from memtopo.geometry.build import lay_out
from memtopo.geometry.model import Geometry
from memtopo.language import Document, suppressions
from memtopo.machine import Machines


class Validated(NamedTuple):
    """Document with its diagnostics; `geometry` is None if there is an error.

    `ignored` are the diagnostics that a comment in the text names, and `used` the spans of the codes in those comments.
    `diagnostics` has the ignored errors, which prevent building like all errors, but not the ignored warnings.
    """

    document: Document
    diagnostics: tuple[Diagnostic, ...]
    geometry: Geometry | None
    ignored: tuple[Diagnostic, ...] = ()
    used: frozenset[Span] = frozenset()


def validate(document: Document, machines: Machines, *, complete: bool = True) -> Validated:
    """Validate a document against a machine, or the machines of its nodes. No driver is used.

    Comments that ignore nothing are reported if the validation is `complete`: without errors that hide others.
    """
    if document.diagnostics and not document.root:
        return Validated(document, document.diagnostics, None)
    with collector_paused():
        read, invalid = spec.read(document.root, document.left_out)
        geometry, unplaced = lay_out(read, machines)
        found = (*document.diagnostics, *invalid, *unplaced)
        violations = rules.diagnose(geometry, machines)
        # Rules skip entries that depend on errors; a comment may name a diagnostic that they would report.
        noted = document.noted((*found, *violations))
        kept = suppressions.apply_suppressions(noted, document, complete=complete and not has_errors(found))
    buildable = None if has_errors(kept.reported) else geometry
    return Validated(document, kept.reported, buildable, kept.ignored, kept.used)
