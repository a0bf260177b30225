"""How much a spec may be: far more than anyone writes, little enough to be refused at once."""

from __future__ import annotations

LARGEST_FILE = 32 << 20
"""Bytes of one text."""

LARGEST_SCALAR = 64 << 10
"""Characters of one key or value."""

MOST_ENTRIES = 1_000_000
"""Entries of all mappings and lists together; with their keys, two million nodes."""

DEEPEST = 64
"""Levels of mappings and lists inside one another."""

MOST_FAULTS = 1000
"""Faults that are told one by one."""
