"""Keeping a layout and serving its exports to other processes, until a signal, a release, or a deadline."""

from memtopo.sharing.holder.held import About, Held
from memtopo.sharing.holder.serving import hold

__all__ = ["About", "Held", "hold"]
