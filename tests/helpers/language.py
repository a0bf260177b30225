"""Reading of specs that are Python mappings, for tests of the language."""

from __future__ import annotations

from typing import Any

from memtopo import spec as language
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.language import Document


def read(**sections: Any) -> language.Spec:
    """Read a spec that must have no errors."""
    found, faults = language.read(Document.from_object({"memtopo": 1, "name": "test", **sections}).root)
    assert faults == []
    return found


def diagnosed(**sections: Any) -> list[tuple[str, Path, str]]:
    """Return code, path and position (key or value) of each diagnostic of a spec."""
    given_ = Document.from_object({"memtopo": 1, "name": "test", **sections})
    return [(fault.code, fault.path, fault.at) for fault in language.read(given_.root, given_.left_out)[1]]


def only_diagnostic_of(document: Document) -> Diagnostic:
    """Return the only diagnostic of a document."""
    (fault,) = document.diagnostics
    return fault
