"""Geometry: a spec with its arithmetic done once, with granularities resolved, sizes rounded and chunks placed."""

from __future__ import annotations

from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry, Placement, Stretch

__all__ = ["ChunkGroup", "Geometry", "Placement", "RangeGroup", "Stretch"]
