"""The spec with its arithmetic done, once: granules resolved, sizes rounded, chunks placed, devices named."""

from memtopo.geometry.build import Verdict, lay_out
from memtopo.geometry.model import Geometry, Placement, Stretch
from memtopo.geometry.runs import BufferRun, ChunkRun, EventRun, ExportRun, RangeRun

__all__ = [
    "BufferRun",
    "ChunkRun",
    "EventRun",
    "ExportRun",
    "Geometry",
    "Placement",
    "RangeRun",
    "Stretch",
    "Verdict",
    "lay_out",
]
