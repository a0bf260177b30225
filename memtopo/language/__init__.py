"""YAML text with places: bytes go in, plain values come out, and every one of them can be found in the text again.

Text is text: no scalar is guessed to be a number, a boolean, a date or null. No input crashes, hangs, or takes more
than bounded memory; what is wrong with it is a value (`Document.faults`), never an exception.
"""

from __future__ import annotations

from memtopo.language.document import Document, Value
from memtopo.language.limits import DEEPEST, LARGEST_FILE, LARGEST_SCALAR, MOST_ENTRIES, MOST_FAULTS
from memtopo.language.reader import read_file, read_stdin, read_text

__all__ = [
    "DEEPEST",
    "LARGEST_FILE",
    "LARGEST_SCALAR",
    "MOST_ENTRIES",
    "MOST_FAULTS",
    "Document",
    "Value",
    "read_file",
    "read_stdin",
    "read_text",
]
