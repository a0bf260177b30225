"""Processes that use GPU memory: their bytes, descriptors and held layouts, as far as they can be read."""

from memtopo.usage.locks import locked_layouts
from memtopo.usage.survey import usage

__all__ = ["locked_layouts", "usage"]
