"""The version of memtopo."""

__version__ = "0.1.0"
