"""The command line: one module a command, and one place that turns what went wrong into an exit status."""

from memtopo.cli.app import main

__all__ = ["main"]
