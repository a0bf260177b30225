"""A layout as a drawing: each range and each memory as a bar to scale, with a line from every label to its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from memtopo.picture import MemoryPicture, Picture, Piece, RangePicture
from memtopo.render import labels
from memtopo.render.bar import Block
from memtopo.render.inks import Inks, inks
from memtopo.render.panel import Panel, Row, drawn

MOST_RANGES = 12
MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class Map:
    """The drawing of a picture, for any width; `ascii` draws with ASCII alone, as does a stream that has no more.

    At most `ranges` ranges are drawn, and at most `rows` pieces of each get a label; the bar shows all of them.
    """

    picture: Picture
    ascii: bool = False
    ranges: int = MOST_RANGES
    rows: int = MOST_ROWS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        used = inks(self.picture, ascii=self.ascii or options.ascii_only)
        panels = [*self._ranges(used), *self._memory(used)]
        yield from drawn(panels, options.max_width, used, console)

    def _ranges(self, used: Inks) -> Iterator[Panel]:
        seen = _Seen()
        for shown in self.picture.ranges[: self.ranges]:
            yield _range(shown, used, seen, self.rows)
        if more := sum(shown.count for shown in self.picture.ranges[self.ranges :]):
            yield Panel([Text(used.told(f"… and {more:,} more range{'s' * (more > 1)}"), "dim")])

    def _memory(self, used: Inks) -> Iterator[Panel]:
        heads = labels.memories(self.picture.memory, used) if self.picture.memory else []
        for turn, (shown, head) in enumerate(zip(self.picture.memory, heads, strict=True)):
            yield _memory(shown, head, used, close=turn > 0)


class _Seen:
    """Which chunks the drawing has shown already, so that the next time can be called that."""

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[int, int]]] = {}

    def again(self, piece: Piece, times: int) -> bool:
        if not piece.elsewhere:
            return False
        first, last = piece.index, piece.index + piece.count + piece.step * (times - 1)
        spans = self._spans.setdefault(piece.chunk, [])
        found = any(first < stop and start < last for start, stop in spans)
        spans.append((first, last))
        return found


def _range(shown: RangePicture, used: Inks, seen: _Seen, most: int) -> Panel:
    mapped = [piece for piece in shown.pieces if piece.chunk]
    alike = all(piece.access == mapped[0].access for piece in mapped)
    access = mapped[0].access if mapped and alike else None
    blocks = [Block(piece.offset, piece.chunk, piece.count, piece.locations) for piece in shown.pieces]
    rows = [
        Row(index, piece.chunk, labels.piece(piece, used, times=shown.count, again=again, access=not alike))
        for index, piece in _labelled(shown.pieces, most)
        for again in [seen.again(piece, shown.count)]
    ]
    return Panel(labels.range_(shown, access, used), shown.size, blocks, rows if mapped else ())


def _labelled(pieces: Sequence[Piece], most: int) -> Iterable[tuple[int, Piece]]:
    """The pieces that get a label: all, or the first ones and the last one."""
    numbered = list(enumerate(pieces))
    return numbered if len(numbered) <= most else [*numbered[: most - 1], numbered[-1]]


def _memory(shown: MemoryPicture, head: Sequence[Text], used: Inks, *, close: bool) -> Panel:
    offsets = accumulate((share.size for share in shown.shares), initial=0)
    blocks = [
        Block(offset, share.chunk, share.count, (shown.device,))
        for offset, share in zip(offsets, shown.shares, strict=False)
    ]
    if shown.free:
        blocks.append(Block(shown.used))
    if shown.taken:
        blocks.append(Block(shown.used + (shown.free or 0), taken=True))
    size = shown.used if shown.total is None else shown.total
    return Panel(head, size, blocks, detail=labels.shares(shown, used), close=close)
