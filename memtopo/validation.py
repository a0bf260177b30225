"""A document against a machine: everything that is wrong with it, and its geometry where nothing is."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo import rules, spec
from memtopo.diagnostics import Diagnostic, has_errors
from memtopo.geometry import Geometry, lay_out
from memtopo.machine import Machine
from memtopo.pause import collector_paused
from memtopo.source import Document


@dataclass(frozen=True, slots=True)
class Validated:
    """A document with all its diagnostics; `geometry` is None where an error among them forbids to build it."""

    document: Document
    diagnostics: tuple[Diagnostic, ...]
    geometry: Geometry | None


def validate(document: Document, machine: Machine) -> Validated:
    """Find every fault of a document on a machine, by reading alone: no driver can be reached from here."""
    if document.faults and not document.root:
        return Validated(document, document.faults, None)
    with collector_paused():
        read, faults = spec.read(document.root, document.left_out)
        geometry, unplaced = lay_out(read, machine)
        found = (*document.faults, *faults, *unplaced, *rules.judge(geometry, machine))
    return Validated(document, found, None if has_errors(found) else geometry)
