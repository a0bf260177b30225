"""Many specs against many machines: which files are meant, what is told of them, and how each fared where."""

from __future__ import annotations

from memtopo.rules.files.collecting import Source, collect
from memtopo.rules.files.results import Checked, File, Result, Shared
from memtopo.rules.files.running import check, read
from memtopo.rules.files.selecting import Selection, selection

__all__ = ["Checked", "File", "Result", "Selection", "Shared", "Source", "check", "collect", "read", "selection"]
