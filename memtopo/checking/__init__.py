"""Many specs against many machines: which files are meant, what is told of them, and how each fared where."""

from __future__ import annotations

from memtopo.checking.collecting import Source, collect
from memtopo.checking.results import Checked, File, Result, Shared
from memtopo.checking.running import check, read
from memtopo.checking.selecting import Selection, selection

__all__ = ["Checked", "File", "Result", "Selection", "Shared", "Source", "check", "collect", "read", "selection"]
