"""Results as pages of blocks, from which text for a terminal, HTML and Markdown are made.

Texts in blocks are as they were found; each of the outputs escapes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram

Tone = Literal["good", "bad", "warn", "dim", ""]
"""Colour of a text: success, failure, interruption, or less important."""

Addresses = Mapping[tuple[str, str], int | None]
"""Addresses of ranges, by the first label of the process picture (empty for a single process) and of the range.

None for an address that differs between the processes of a picture.
"""


HEAT = (
    ("#440154", "white"), ("#3b528b", "white"), ("#1f7f79", "white"), ("#5ec962", "black"), ("#fde725", "black"),
)  # fmt: skip
"""Colours for the least to the most: five of viridis, which ascends in brightness for every kind of colour vision, each
with that of a legible text."""


class Toned(NamedTuple):
    """A text with a tone: a paragraph, or a cell."""

    text: str
    tone: Tone = ""


class TimeSpan(Struct, frozen=True):
    """A span of time: its start and length as fractions of a track, the index of its hue, and words for it."""

    start: float
    length: float
    hue: int
    words: str


class Track(Struct, frozen=True):
    """A cell with spans of time. Text and Markdown have no column of these."""

    spans: Sequence[TimeSpan]


class Stacked(Struct, frozen=True):
    """A cell of several lines."""

    lines: Sequence[str]


Cell = str | Toned | Stacked | Track


class Column(Struct, frozen=True):
    """Heading and alignment of a column: `right` for numbers."""

    heading: str
    align: Literal["left", "right"] = "left"


def columns(*headings: str) -> tuple[Column, ...]:
    """Columns by their headings; a heading after `>` is that of numbers, on the right."""
    return tuple(Column(each.removeprefix(">"), "right" if each[:1] == ">" else "left") for each in headings)


class Table(Struct, frozen=True):
    """A table under a caption with a note. `more` rows are left out.

    `below` has a text for each row, or an empty one, that is shown below it. `heat` colours the cells of each row
    except its first: from 0 to 1, None for no colour. A `close` table has a column for each GPU.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    note: str = ""
    more: int = 0
    below: Sequence[str] = ()
    heat: Sequence[Sequence[float | None]] = ()
    close: bool = False

    def cut(self, most: int) -> Table:
        """The table with its first rows, and the number of the others."""
        more = self.more + max(0, len(self.rows) - most)
        return replace(self, rows=self.rows[:most], more=more, below=self.below[:most], heat=self.heat[:most])

    def filled(self) -> Table:
        """The table without the columns whose cells are all empty."""
        used = [n for n in range(len(self.columns)) if any(row[n] not in _EMPTY for row in self.rows)]
        rows = [tuple(row[n] for n in used) for row in self.rows]
        return replace(self, columns=[self.columns[n] for n in used], rows=rows)


_EMPTY = ("", Toned(""))


class Pairs(Struct, frozen=True):
    """Names and values."""

    rows: Sequence[tuple[str, str]]


class Notes(Struct, frozen=True):
    """Remarks on a result."""

    texts: Sequence[str]


class Item(Struct, frozen=True):
    """A text with lines below it."""

    text: str
    lines: Sequence[str]


class Source(Struct, frozen=True):
    """Lines in letters of one width, as on a terminal."""

    lines: Sequence[str]


class Series(NamedTuple):
    """Amounts over time: pairs of seconds and bytes, each of which holds until the next one."""

    name: str
    points: Sequence[tuple[float, int]]

    @property
    def most(self) -> int:
        """The largest amount."""
        return max((size for _, size in self.points), default=0)


class Timeline(Struct, frozen=True):
    """Bytes over a time of some seconds, a line for each series."""

    seconds: float
    series: Sequence[Series]

    @property
    def most(self) -> int:
        """The largest amount."""
        return max((each.most for each in self.series), default=0)

    def levels(self, points: Sequence[tuple[float, int]], count: int) -> Iterator[int]:
        """Yield the most bytes of a series in each of `count` equal intervals."""
        rest, level = deque(points), 0
        for interval in range(1, count + 1):
            most = level
            while rest and (rest[0][0] * count < interval * self.seconds or interval == count):
                level = rest.popleft()[1]
                most = max(most, level)
            yield most


class Drawing(Struct, frozen=True):
    """Drawing of a layout with a title and a note below that, and the position in the spec of each path.

    `addresses` are those of the ranges of an applied layout. Text is in ASCII if `ascii`, and has `every` process,
    or as many as fit two screens.
    """

    diagram: Diagram
    title: str = ""
    note: str = ""
    locate: Callable[[Path], str | None] = lambda _path: None
    addresses: Addresses = {}
    ascii: bool = False
    every: bool = False
    timeline: Timeline | None = None
    """Memory over time, which a page of HTML has below the drawing."""


class Legend(Struct, frozen=True):
    """Meanings of hues by their index, for the tracks above."""

    hues: Mapping[str, int]


Block = str | Toned | Table | Pairs | Notes | Item | Source | Drawing | Legend | Timeline
"""A part of a section; a paragraph that begins with blanks is indented."""


class Section(Struct, frozen=True):
    """Blocks below a title, or without one."""

    title: str
    blocks: Sequence[Block]
    tone: Tone = ""


class Page(Struct, frozen=True):
    """Result of a command: its name, what it is of and where, facts of that, sections, and a verdict."""

    command: str
    title: str
    where: str = ""
    facts: Sequence[str] = ()
    sections: Sequence[Section] = ()
    verdict: Toned | None = None


def sections(*blocks: Block | None) -> list[Section]:
    """A section without a title for each block."""
    return [Section("", [each]) for each in blocks if each]


def notes(texts: Iterable[str]) -> list[Section]:
    """A section of notes, if there are some."""
    found = list(texts)
    return [Section("", [Notes(found)])] if found else []
