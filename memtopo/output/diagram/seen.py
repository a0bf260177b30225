"""Which chunks a drawing has shown already, and where, so that the next time can say so."""

from __future__ import annotations

from typing import NamedTuple

from memtopo.output.diagram.model import MappingSpan

MOST = 64
"""Spans of one kind of chunks that are remembered; a picture shows no more of them apart."""


class Sight(NamedTuple):
    """Where chunks were seen first: the range, and the turn of the block in its bar."""

    range: str
    block: int
    offset: int


class Seen:
    """Remembers what was drawn, of chunks that are mapped more than once."""

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[int, int, Sight]]] = {}

    def before(self, piece: MappingSpan, times: int, sight: Sight) -> Sight | None:
        """Where some of these chunks were seen before, in the same range if there; from now on they were seen here."""
        if not piece.elsewhere:
            return None
        first, last = piece.index, piece.index + piece.count + piece.step * (times - 1)
        spans = self._spans.setdefault(piece.chunk, [])
        met = [earlier for start, stop, earlier in spans if first < stop and start < last]
        found = next((earlier for earlier in met if earlier.range == sight.range), met[0] if met else None)
        if len(spans) < MOST:
            spans.append((first, last, sight))
        return found
