"""Geometry: a spec with its arithmetic done once, with granularities resolved, sizes rounded and chunks placed."""

from __future__ import annotations

from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import AccessSpan, Geometry, Placement

__all__ = ["AccessSpan", "ChunkGroup", "Geometry", "Placement", "RangeGroup"]
