"""Views of chunks: the access that a location has to them through each range."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from memtopo.driver.types import Access, Location
from memtopo.geometry.access import Granted
from memtopo.geometry.model import AccessSpan, Geometry, Placement


class View(NamedTuple):
    """Chunks of one group as a location accesses them through one range."""

    first: int
    stop: int
    location: Location
    access: Access
    range: str


def views_of_chunks(geometry: Geometry, access_of: Granted) -> dict[str, list[View]]:
    """Views of the chunks that more than one entry maps."""
    placed: dict[str, list[Placement]] = {}
    for placements in geometry.placements.values():
        for placement in placements:
            placed.setdefault(placement.chunk.name, []).append(placement)
    return {
        name: [view for placement in several for view in _views_of(access_of[placement.where], placement)]
        for name, several in placed.items()
        if len(several) > 1
    }


def _views_of(access_spans: Sequence[AccessSpan], placement: Placement) -> Iterator[View]:
    start = bisect_right(access_spans, placement.offset, key=lambda span: span.end)
    for index in range(start, len(access_spans)):
        span = access_spans[index]
        if span.offset >= placement.end:
            return
        low, high = max(span.offset, placement.offset), min(span.end, placement.end)
        size, label = placement.chunk.size, placement.range.label(placement.instance)
        first, stop = (low - placement.offset) // size, (high - placement.offset) // size
        for (begin, end), (location, access) in product(placement.spans_between(first, stop), span.grants):
            yield View(begin, end, location, access, label)


def unequal_views(views: list[View]) -> tuple[View, View] | None:
    """Two views of one chunk by one location in different ranges with different access, or None."""
    latest: dict[tuple[Location, Access], View] = {}
    for view in views:
        for access in (Access.R, Access.RW):
            other = latest.get((view.location, access))
            if other and access != view.access and view.first < other.stop and other.range != view.range:
                return other, view
        known = latest.get((view.location, view.access))
        if known is None or view.stop > known.stop:
            latest[view.location, view.access] = view
    return None
