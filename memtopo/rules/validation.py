"""A document against a machine: everything that is wrong with it, and its geometry where nothing is."""

from __future__ import annotations

from typing import NamedTuple

from memtopo import rules, spec
from memtopo.common.collector import collector_paused
from memtopo.diagnostics.model import Diagnostic, Span, has_errors
from memtopo.geometry import Geometry, lay_out
from memtopo.language import Document, suppressions
from memtopo.machine import Machine


class Validated(NamedTuple):
    """A document with all its diagnostics; `geometry` is None where an error among them forbids to build it.

    `ignored` are those that a comment in the text names, and `used` are the places of the codes in those comments.
    Ignored warnings are gone from `diagnostics`; ignored errors are not, and forbid to build it like any other.
    """

    document: Document
    diagnostics: tuple[Diagnostic, ...]
    geometry: Geometry | None
    ignored: tuple[Diagnostic, ...] = ()
    used: frozenset[Span] = frozenset()


def validate(document: Document, machine: Machine) -> Validated:
    """Find every fault of a document on a machine, by reading alone: no driver can be reached from here."""
    if document.diagnostics and not document.root:
        return Validated(document, document.diagnostics, None)
    with collector_paused():
        read, faults = spec.read(document.root, document.left_out)
        geometry, unplaced = lay_out(read, machine)
        told = (*document.diagnostics, *faults, *unplaced)
        judged = rules.judge(geometry, machine)
        # Rules skip what depends on an entry with errors; a comment may name a diagnostic that they would report.
        found = suppressions.apply_suppressions((*told, *judged), document, complete=not has_errors(told))
    return Validated(
        document, found.reported, None if has_errors(found.reported) else geometry, found.ignored, found.used
    )
