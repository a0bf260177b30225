"""YAML text with source positions: bytes become plain values, each of which can be located in the text.

Scalars stay text: none is interpreted as a number, a boolean, a date or null. No input causes a crash, a hang or
unbounded memory use. Errors in the text are data (`Document.diagnostics`), never exceptions.
"""

from __future__ import annotations

from memtopo.language.document import NO_SETTINGS, Document, Value
from memtopo.language.reader import SpecText, read_file, read_stdin, read_text

__all__ = ["NO_SETTINGS", "Document", "SpecText", "Value", "read_file", "read_stdin", "read_text"]
