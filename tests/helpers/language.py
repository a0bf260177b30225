"""Specs of plain data, read as the language has them."""

from __future__ import annotations

from typing import Any

from memtopo import spec as language
from memtopo.diagnostics.model import Path
from memtopo.language import Document


def read(**sections: Any) -> language.Spec:
    """A spec of plain data, which must have no faults."""
    found, faults = language.read(Document.from_object({"memtopo": 1, "name": "test", **sections}).root)
    assert faults == []
    return found


def told(**sections: Any) -> list[tuple[str, Path, str]]:
    """Code, path and which end of it, of each fault of a spec of plain data."""
    given_ = Document.from_object({"memtopo": 1, "name": "test", **sections})
    return [(fault.code, fault.path, fault.at) for fault in language.read(given_.root, given_.left_out)[1]]
