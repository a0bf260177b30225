"""Processes that use GPU memory: their bytes, descriptors and held layouts, as far as they can be read."""

from memtopo.usage.survey import locked_layouts, usage

__all__ = ["locked_layouts", "usage"]
