"""Zones: where the cards of a process and those of memory stand, in the room that there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.output.diagram import memory, ranges, rows
from memtopo.output.diagram.box import Box, beside, stacked, words
from memtopo.output.diagram.card import Card, grid
from memtopo.output.diagram.model import Diagram, HandleFlow, MemoryDiagram
from memtopo.output.diagram.pen import Pen
from memtopo.output.diagram.seen import Seen

NARROWEST = 288.0
GAP = 16.0

_APART = 12.0
_BESIDE = 4  # memories that stand beside addresses; more of them stand below
_WIDEST = 448.0
_TALLEST = 760.0  # that a range is made so that it is as high as the memories beside it


def process(shown: Diagram, label: str, flows: Sequence[HandleFlow], room: float, tall: float, pen: Pen) -> Box:
    """The rows and ranges of one process of several, at least `tall` where a range can be made higher.

    Rows come first, so that lines between processes are short.
    """
    head = _listed(shown, label, flows, room, pen)
    return stacked([*head, *_spaces(shown, label, room, pen, _left(tall, head))], _APART)


def alone(shown: Diagram, room: float, pen: Pen) -> Box:
    """A layout of one process: addresses on the left and memory on the right, or below where there is less room."""
    if not shown.memory or not shown.ranges or len(shown.memory) > _BESIDE or room < NARROWEST * 2 + GAP:
        above = _single(shown, room, 0, pen)
        return stacked([box for box in (above, memories(shown.memory, room, pen)) if box.height], GAP)
    cards = [memory.card(each, pen) for each in shown.memory]
    right = grid(cards, 1, NARROWEST, GAP)
    left = _single(shown, room - NARROWEST - GAP, min(right.height, _TALLEST), pen)
    if left.height > right.height and len(cards) == 1:
        right = grid(cards, 1, NARROWEST, GAP, left.height)
    return beside([left, right], GAP)


def _single(shown: Diagram, room: float, tall: float, pen: Pen) -> Box:
    tail = _listed(shown, "", shown.flows, room, pen)
    return stacked([*_spaces(shown, "", room, pen, _left(tall, tail)), *tail], _APART)


def _left(tall: float, rows: Sequence[Box]) -> float:
    """The height that rows leave."""
    return tall - sum(box.height + _APART for box in rows)


def memories(shown: Sequence[MemoryDiagram], room: float, pen: Pen, most: float = _WIDEST) -> Box:
    """The memory of all processes, each at most so wide."""
    return _zone([memory.card(each, pen) for each in shown], room, most=most)


def _listed(shown: Diagram, label: str, flows: Sequence[HandleFlow], room: float, pen: Pen) -> list[Box]:
    found = rows.listed(shown, label, flows)
    return [rows.drawn(found, room, pen)] if found else []


def _spaces(shown: Diagram, label: str, room: float, pen: Pen, tall: float = 0) -> Iterator[Box]:
    seen = Seen()
    cards = [ranges.card(each, label, pen, seen) for each in shown.ranges[: pen.most.ranges]]
    if cards:
        yield _zone(cards, room, tall)
    if more := sum(each.count for each in shown.ranges[pen.most.ranges :]):
        yield Box(room, 20, words(0, 14, f"… and {more:,} more ranges", "w"))


def _zone(cards: Sequence[Card], room: float, tall: float = 0, most: float = 1e9) -> Box:
    columns = max(1, min(len(cards), int((room + GAP) // (NARROWEST + GAP))))
    return grid(cards, columns, min(most, (room - GAP * (columns - 1)) / columns), GAP, tall)
