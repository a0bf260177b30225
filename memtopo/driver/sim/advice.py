"""How parts of one allocation of managed memory are going to be used (facts 39 and 60)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memtopo.driver.types import RangeAttribute

PAGE = 4 << 10


class Uses(NamedTuple):
    """What was advised for a part of an allocation: GPUs by ordinal, and the host by -1."""

    read_mostly: bool = False
    preferred: tuple[int, ...] = ()
    accessed_by: tuple[int, ...] = ()
    prefetched: tuple[int, ...] = ()


class Advised:
    """The uses of all parts of an allocation of `size` bytes, by the pages of the CPU."""

    def __init__(self, size: int) -> None:
        self._parts = [(_up(size), Uses())]

    def change(self, start: int, end: int, change: Callable[[Uses], Uses]) -> None:
        """Change the uses of whatever pages some bytes are in."""
        start, end = start // PAGE * PAGE, _up(end)
        parts, at = [], 0
        for limit, uses in self._parts:
            before, inside = min(limit, max(at, start)), min(limit, max(at, end))
            cuts = [(before, uses), (inside, change(uses)), (limit, uses)]
            for cut, of in cuts:
                if cut > at:
                    parts.append((cut, of))
                    at = cut
        self._parts = parts

    def told(self, start: int, end: int, attribute: RangeAttribute) -> tuple[int, ...]:
        """What holds for all pages of some bytes alike."""
        found, at = [], 0
        for limit, uses in self._parts:
            if at < end and start < limit:
                found.append(uses)
            at = limit
        match attribute:
            case RangeAttribute.READ_MOSTLY:
                return (int(all(uses.read_mostly for uses in found)),)
            case RangeAttribute.ACCESSED_BY:
                return tuple(each for each in found[0].accessed_by if all(each in uses.accessed_by for uses in found))
            case RangeAttribute.PREFERRED_LOCATION:
                return _alike([uses.preferred for uses in found])
            case RangeAttribute.LAST_PREFETCH_LOCATION:
                return _alike([uses.prefetched for uses in found])


def _alike(places: list[tuple[int, ...]]) -> tuple[int, ...]:
    return places[0] if len(set(places)) == 1 else ()


def _up(size: int) -> int:
    return -(-size // PAGE) * PAGE
