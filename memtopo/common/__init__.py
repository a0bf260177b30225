"""Utilities for all rooms: errors, text, sizes and durations. The version of memtopo is here."""

__version__ = "0.1.0"

WITHOUT_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "true")
"""Variable that the command line sets: without it, pydantic reads the metadata of all installed packages (10 ms)."""
