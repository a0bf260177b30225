"""Cards: a heading, a bar with its labels and lanes, and a frame around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memtopo.output.diagram import bar, labels
from memtopo.output.diagram.bar import LEAST, Block, lengths
from memtopo.output.diagram.context import Pen
from memtopo.output.diagram.markup import Box, beside, curve, dot, placed, rect, stacked, words
from memtopo.output.diagram.typography import NAME, WORDS, fitting, packed, width

_NARROW, _ROOMY, _TIGHT, _SMALL = 284.0, 440.0, 330.0, 240.0
_LOWEST = 132.0
_HIGHEST = 420.0
_GAP = 10.0
_LINK = 20.0  # room for lines between blocks of one bar

Draw = Callable[[float, float], Box]


def pad(wide: float) -> float:
    """The space inside of the edges of a card or a frame."""
    return 16.0 if wide >= _NARROW else 10.0


@dataclass(frozen=True, slots=True)
class Heading:
    """What kind of thing a card shows, its name, its size, and what else there is to be said of it."""

    kind: str
    name: str
    size: str
    notes: tuple[str, ...] = ()


def heading(shown: Heading, room: float) -> Box:
    """A kind in small, a name and a size in a line, and notes below in as many lines as they need."""
    size = width(shown.size, WORDS)
    parts = [words(0, 10, shown.kind, "c w")]
    name = fitting(shown.name, room - size - 12, NAME + 1.5)
    parts += [words(0, 30, name, "n a"), words(room, 30, shown.size, "", end=True)]
    lines = packed(list(shown.notes), room, WORDS)
    parts += [words(0, 48 + 16 * turn, line, "w") for turn, line in enumerate(lines)]
    return Box(room, 36 + 16 * len(lines), "".join(parts))


@dataclass(frozen=True, slots=True)
class Card:
    """A heading above a diagram, which `draw` draws in a width and at least so high; edges behind tell of `copies`."""

    heading: Heading
    draw: Draw
    copies: int = 1

    def box(self, wide: float, tall: float = 0) -> Box:
        """The card, as wide as that, and as high as its content or higher."""
        behind = 8.0 if self.copies > 1 else 0.0
        edge = pad(wide)
        room = wide - 2 * edge - behind
        head = heading(self.heading, room)
        content = stacked([head, self.draw(room, tall - behind - 2 * edge - head.height - _GAP)], _GAP)
        height = max(content.height + 2 * edge, tall - behind)
        edges = [rect(4 * turn, 4 * turn, wide - 8, height, "k", 8) for turn in (2, 1)] if behind else []
        front = rect(0, 0, wide - behind, height, "k", 8)
        return Box(wide, height + behind, "".join([*edges, front, placed(content, edge, edge)]))


def grid(cards: Sequence[Card], columns: int, wide: float, gap: float, tall: float = 0) -> Box:
    """Cards side by side, `columns` to a row, all of a row as high as the highest; a single row at least `tall`."""
    lines = [cards[at : at + columns] for at in range(0, len(cards), columns)]
    least = tall if len(lines) == 1 else 0
    return stacked([_row(line, wide, gap, least) for line in lines], gap)


def _row(cards: Sequence[Card], wide: float, gap: float, least: float) -> Box:
    tall = max([least, *(card.box(wide).height for card in cards)])
    return beside([card.box(wide, tall) for card in cards], gap)


def diagram(blocks: Sequence[Block], room: float, tall: float, pen: Pen) -> Box:
    """A bar to scale with lanes of access on its left and labels on its right."""
    granted = bar.lane_devices(blocks)
    shown = granted if len(granted) <= bar.MOST_LANES else []
    links = [(block.twin, turn) for turn, block in enumerate(blocks) if block.twin is not None]
    wide = 84.0 if room >= _ROOMY else 44.0 if room >= _SMALL else 36.0
    tight = room < _TIGHT
    left = bar.lanes_width(shown, tight=tight) + (_LINK if links else 0)
    named = labels.labels(blocks, room - left - wide)
    start = bar.LANES_HEAD if shown else 4
    height = max(_LOWEST, labels.height(named), min(_HIGHEST, len(blocks) * LEAST * 2), tall - start - 1)
    sizes = lengths([block.size for block in blocks], height, LEAST)
    *tops, end = accumulate(sizes, initial=start)
    return Box(
        room,
        end + 1,
        "".join(
            [
                *bar.draw_lanes(blocks, tops, end, shown, tight=tight),
                *_links(links, tops, end, left),
                *bar.draw_bar(blocks, tops, end, left, wide, pen),
                *labels.drawn(named, tops, end, left + wide, pen, start=start),
            ]
        ),
    )


def _links(links: Sequence[tuple[int, int]], tops: Sequence[float], end: float, x: float) -> Iterator[str]:
    """Curves between blocks of one bar that show the same memory."""
    bounds = [*tops, end]
    for first, again in links[: labels.MOST]:
        above, below = ((bounds[turn] + bounds[turn + 1]) / 2 for turn in (first, again))
        yield curve((x - 1, above), (x - 1, below), x - _LINK + 2, "f")
        yield from (dot(x - 2, y, "u", 2.5) for y in (above, below))
