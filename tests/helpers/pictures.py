"""Specs as pictures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from memtopo import machine
from memtopo.diagnostics.model import Path as Place
from memtopo.language import Document, read_file
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.model import Diagram
from memtopo.rules.validation import validate
from tests.helpers.specs import ROOT

HARD = ROOT / "tests" / "golden" / "parts-and-holes.yaml"
"""A spec that has what none in specs/ has."""


@cache
def pictured(path: Path) -> tuple[Diagram, Document]:
    """The picture of a spec on four H200s."""
    facts = machine.load("h200x4")
    found = validate(read_file(path), facts)
    assert found.geometry, found.diagnostics
    return build_diagram(found.geometry, facts), found.document


def somewhere(path: Place) -> str | None:
    """A place for every path."""
    return f"spec.yaml:{len(path)}:1"
