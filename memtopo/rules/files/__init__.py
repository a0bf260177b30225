"""Many specs against many machines: which files are meant, what is told of them, and how each fared where."""

from __future__ import annotations

from memtopo.rules.files.checks import Selection, check, read, selection
from memtopo.rules.files.paths import Source, collect
from memtopo.rules.files.results import Checked, File, Result, Shared

__all__ = ["Checked", "File", "Result", "Selection", "Shared", "Source", "check", "collect", "read", "selection"]
