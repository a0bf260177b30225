"""The spec with its arithmetic done, once: granules resolved, sizes rounded, chunks placed, devices named."""

from memtopo.geometry.build import Verdict, lay_out
from memtopo.geometry.model import ChunkRun, Geometry, Placement, RangeRun, Stretch

__all__ = ["ChunkRun", "Geometry", "Placement", "RangeRun", "Stretch", "Verdict", "lay_out"]
