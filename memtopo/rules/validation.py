"""Validation of a document against a machine: all diagnostics, and the geometry if there are no errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memtopo import rules, spec
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, Span, has_errors
from memtopo.geometry.model import Geometry
from memtopo.kinds.build import lay_out
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
        return Validated(document, _escaped(document.diagnostics), None)
    entries, invalid = spec.read(document.root, document.left_out)
    geometry, misplaced = lay_out(entries, machines)
    found = (*document.diagnostics, *invalid, *_by_instance(misplaced))
    # Rules skip entries that depend on errors; a comment may name a diagnostic that they would report.
    noted = document.noted((*found, *_by_instance(rules.diagnose(geometry, machines))))
    kept = suppressions.apply_suppressions(noted, document, complete=complete and not has_errors(found))
    buildable = None if has_errors(kept.reported) else geometry
    return Validated(document, _escaped(kept.reported), buildable, _escaped(kept.ignored), kept.used)


def _escaped(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Diagnostics as they leave validation: names in their texts may have any characters until here."""
    return tuple(each.escaped() for each in found)


def _by_instance(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Diagnostics with those of the instances of a counted process, each on its own GPU, as one."""
    every = list(found)
    others = [each for each in every if each.path[:1] != ("processes",)]
    return others + messages.likewise(each for each in every if each.path[:1] == ("processes",))
