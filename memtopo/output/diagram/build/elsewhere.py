"""How often chunks are mapped: one range wraps around, or two ranges show the same memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from memtopo.geometry import ChunkGroup, Geometry

_Span = tuple[int, int]


class Elsewhere:
    """Answers how many other mappings the chunks of one mapping run have."""

    def __init__(self, geometry: Geometry) -> None:
        spans: dict[str, list[_Span]] = {}
        for placements in geometry.placements.values():
            for placement in placements:
                spans.setdefault(placement.chunk.name, []).append((placement.first, placement.first + placement.count))
        self._curves: Mapping[str, _Curve] = {
            name: _Curve(found) for name, found in spans.items() if len(found) > 1 and _meet(found)
        }

    def count(self, run: ChunkGroup, first: int, count: int) -> int:
        """Mappings of the chunks `first` on, `count` of them, beside one of each."""
        curve = self._curves.get(run.name)
        return curve.below(first + count) - curve.below(first) - count if curve else 0


class _Curve:
    """How many mappings there are of the chunks below an index; straight between two bounds of mapping runs."""

    def __init__(self, spans: list[_Span]) -> None:
        turns: dict[int, int] = {}
        for first, stop in spans:
            turns[first] = turns.get(first, 0) + 1
            turns[stop] = turns.get(stop, 0) - 1
        self._bounds = sorted(turns)
        self._depths: list[int] = []
        self._heights: list[int] = []
        depth = height = before = 0
        for bound in self._bounds:
            height += depth * (bound - before)
            depth, before = depth + turns[bound], bound
            self._heights.append(height)
            self._depths.append(depth)

    def below(self, index: int) -> int:
        at = bisect_right(self._bounds, index) - 1
        return self._heights[at] + self._depths[at] * (index - self._bounds[at]) if at >= 0 else 0


def _meet(spans: list[_Span]) -> bool:
    highest = 0
    for first, stop in sorted(spans):
        if first < highest:
            return True
        highest = max(highest, stop)
    return False
