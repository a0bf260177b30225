"""The spec with its arithmetic done, once: granules resolved, sizes rounded, chunks placed, devices named."""

from memtopo.geometry.build import Verdict, lay_out
from memtopo.geometry.groups import (
    BufferGroup,
    ChunkGroup,
    EventGroup,
    ExportGroup,
    ExternalObject,
    ExternalPart,
    ImportedSemaphore,
    ManagedAllocation,
    RangeGroup,
)
from memtopo.geometry.model import Geometry, Placement, Stretch

__all__ = [
    "BufferGroup",
    "ChunkGroup",
    "EventGroup",
    "ExportGroup",
    "ExternalObject",
    "ExternalPart",
    "Geometry",
    "ImportedSemaphore",
    "ManagedAllocation",
    "Placement",
    "RangeGroup",
    "Stretch",
    "Verdict",
    "lay_out",
]
