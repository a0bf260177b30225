"""Validation of a document against a machine: all diagnostics, and the geometry if there are no errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memtopo import rules, spec
from memtopo.common.garbage_collection import collector_paused
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, Span, has_errors
from memtopo.geometry.model import Geometry
from memtopo.kinds.build import ResolvedLayout, lay_out
from memtopo.kinds.kind import Batch
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


class Request(NamedTuple):
    """Document to be validated against a machine, or the machines of its nodes."""

    document: Document
    machines: Machines


def validate(document: Document, machines: Machines, *, complete: bool = True) -> Validated:
    """Validate a document against a machine, or the machines of its nodes. No driver is used.

    Comments that ignore nothing are reported if the validation is `complete`: without errors that hide others.
    """
    return validate_all([Request(document, machines)], complete=complete)[0]


def validate_all(requests: Iterable[Request], *, complete: bool = True) -> list[Validated]:
    """Validate documents as `validate`, all of them in one stage before the next begins.

    What a stage needs then stays in the caches of the processor, which saves a sixth of the time of small specs.
    """
    with collector_paused():
        read = [(each, *spec.read(each.document.root, each.document.left_out)) for each in requests]
        batch: Batch = {}
        laid_out = [(each, invalid, lay_out(entries, each.machines, batch)) for each, entries, invalid in read]
        diagnosed = [(*each, rules.diagnose(each[2].geometry, each[0].machines)) for each in laid_out]
        return [_validated(*each, complete=complete) for each in diagnosed]


def _validated(
    request: Request, invalid: list[Diagnostic], layout: ResolvedLayout, violations: list[Diagnostic], *, complete: bool
) -> Validated:
    document = request.document
    if document.diagnostics and not document.root:
        return Validated(document, document.diagnostics, None)
    found = (*document.diagnostics, *invalid, *_by_instance(layout.diagnostics))
    # Rules skip entries that depend on errors; a comment may name a diagnostic that they would report.
    noted = document.noted((*found, *_by_instance(violations)))
    kept = suppressions.apply_suppressions(noted, document, complete=complete and not has_errors(found))
    buildable = None if has_errors(kept.reported) else layout.geometry
    return Validated(document, kept.reported, buildable, kept.ignored, kept.used)


def _by_instance(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Diagnostics with those of the instances of a counted process, each on its own GPU, as one."""
    if not (every := list(found)):
        return every
    others = [each for each in every if each.path[:1] != ("processes",)]
    return others + messages.likewise(each for each in every if each.path[:1] == ("processes",))
