"""Geometry: a resolved spec, with granularities, rounded sizes and the offsets of mappings as numbers."""

from __future__ import annotations

from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import AccessSpan, Geometry, Placement

__all__ = ["AccessSpan", "ChunkGroup", "Geometry", "Placement", "RangeGroup"]
