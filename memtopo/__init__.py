"""memtopo lays out GPU memory from a file: validate, plan, apply, prove, and take down without a trace."""

from memtopo.version import __version__

__all__ = ["__version__"]
