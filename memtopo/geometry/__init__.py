"""The spec with its arithmetic done, once: granules resolved, sizes rounded, chunks placed, devices named."""

from memtopo.geometry.build import Verdict, lay_out
from memtopo.geometry.model import Geometry, Placement, Stretch
from memtopo.geometry.runs import (
    BufferRun,
    ChunkRun,
    EventRun,
    ExportRun,
    ExternalPart,
    ExternalRun,
    ManagedRun,
    RangeRun,
    SemaphoreRun,
)

__all__ = [
    "BufferRun",
    "ChunkRun",
    "EventRun",
    "ExportRun",
    "ExternalPart",
    "ExternalRun",
    "Geometry",
    "ManagedRun",
    "Placement",
    "RangeRun",
    "SemaphoreRun",
    "Stretch",
    "Verdict",
    "lay_out",
]
