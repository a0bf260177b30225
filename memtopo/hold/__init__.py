"""Keeping a layout and serving its exports to other processes, until a signal, a release, or a deadline."""

from memtopo.hold.held import About, Held
from memtopo.hold.serving import hold

__all__ = ["About", "Held", "hold"]
