"""What all parts of a drawing share: words for sizes, names and access; letters, colours, positions and limits."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from msgspec import Struct

from memtopo.common.text import display_width, numbered, printable
from memtopo.common.units import exact, rounded, shorten
from memtopo.diagnostics.model import Path
from memtopo.geometry import diagram as picture
from memtopo.geometry.diagram import DeviceAccess, Diagram, MappingSpan, MemoryDiagram, ProcessDiagram, RangeDiagram
from memtopo.output.blocks import Addresses, Drawing
from memtopo.output.humanize import subjects

_FEW = 2  # names that are listed one by one
_NAMED = 3  # entries of an elastic range, and parts of a chunk
_LONGEST_PART = 20  # characters of a part's name
_DIGITS = 4  # of an offset in full
_GPU = re.compile(r"((?:[^/]+/)?gpu)([0-9]+)")


def shortened(name: str, columns: int) -> str:
    """A name in at most so many columns, without its middle: the ends of names differ most."""
    shown = printable(name)
    if display_width(shown) <= columns:
        return shown
    start = _first(shown, (columns - 1) // 2)
    return f"{start.rstrip()}…{_first(shown[::-1], columns - 1 - display_width(start))[::-1].lstrip()}"


def _first(text: str, columns: int) -> str:
    widths = accumulate(map(display_width, text))
    return text[: sum(width <= columns for width in widths)]


def first_and_last(count: int, most: int) -> Sequence[int]:
    """Indices of what has a label: all, or the first ones and the last one."""
    return range(count) if count <= most else [*range(most - 1), count - 1]


def granted(access: Sequence[DeviceAccess]) -> str:
    """Access in short: `gpu0 rw, gpu1-3 r`."""
    if not access:
        return "no access"
    words: list[str] = []
    for word, group in groupby(access, key=lambda each: each.access):
        words += [f"{name} {printable(word)}" for name in _gpu_ranges([printable(each.device) for each in group])]
    return ", ".join(words)


def order(span: MappingSpan) -> str:
    """Remark after the locations of a span that does not show which chunk is on which of them."""
    return " in mixed order" if span.mixed else ""


def multiple(count: int, size: int) -> str:
    """A size, or several equal ones: `16 × 2 MiB`."""
    return rounded(size) if count == 1 else f"{count:,} × {rounded(size)}"


def name_range(first: str, last: str) -> str:
    """A name, or the first one and the number of the last: `page.0 … 31`; both names if they have no common stem."""
    return subjects(first, last, 0)


def chunk_names(span: MappingSpan, count: int) -> str:
    """The chunks of a span of `count` equal ranges; of all of them if these are consecutive."""
    stem, number = numbered(span.last)
    if number is None:
        return name_range(span.first, span.last)
    in_turn = span.step == 1 and span.interval == count
    if span.interval > 1 and not in_turn:
        return f"{span.first}, {name_range(f'{stem}.{span.index + span.interval}', span.last)}"
    ahead = span.step * (count - 1) if in_turn or span.step == span.count else 0
    return name_range(span.first, f"{stem}.{number + ahead}")


class SpanWords(Struct, frozen=True):
    """Words for a span, the same in every drawing: its size and its offset, and of a span that is no hole its chunks.

    `parts` are the first parts of each chunk, and `in_each` says which chunks the next equal range has, if that is to
    be said.
    """

    size: str
    at: str
    name: str = ""
    parts: str = ""
    in_each: str = ""


def span_words(span: MappingSpan, ranges: int) -> SpanWords:
    """The words for a span of `ranges` equal ranges."""
    if not span.chunk:
        return SpanWords(rounded(span.size), offset(span.offset))
    size, in_each = multiple(span.count, span.bytes_each), ""
    if ranges > 1 and span.step != span.count:
        in_each = f"{span.step:+,} in each" if span.step else "same in each"
    # First parts of each chunk: `signal 4 KiB, data 2 MiB`.
    words = [f"{shorten(part.name, _LONGEST_PART)} {rounded(part.size)}" for part in span.parts[:_NAMED]]
    left = len(span.parts) - _NAMED
    parts = ", ".join([*words, *([f"{left:,} more parts"] if left > 0 else [])])
    return SpanWords(size, offset(span.offset), chunk_names(span, ranges), parts, in_each)


def short_names(names: Sequence[str]) -> list[str]:
    """Names as they are if they are few, otherwise with ranges of GPUs: `gpu0-3`."""
    return list(names) if len(names) <= _FEW else list(_gpu_ranges(names))


def _gpu_ranges(names: Sequence[str]) -> Iterator[str]:
    """Names, with consecutive GPUs of a node as a range: `gpu0-3`, `a/gpu0-3`."""
    numbered = [(index, _GPU.fullmatch(name), name) for index, name in enumerate(names)]
    for _, group in groupby(numbered, key=lambda each: (each[1][1], int(each[1][2]) - each[0]) if each[1] else each[2]):
        found = list(group)
        last = found[-1][1]
        yield found[0][2] if len(found) == 1 or last is None else f"{found[0][2]}-{last[2]}"


def offset(amount: int) -> str:
    """An offset in full if that is short, otherwise to a tenth."""
    whole = exact(amount)
    digits = whole.rstrip("BKMGTi")
    return f"{digits} {whole[len(digits) :]}".rstrip() if len(digits) <= _DIGITS else rounded(amount)


def processes(process: ProcessDiagram) -> str:
    """The processes of a diagram: `reader.0 … 3`, or `reader.0, reader.2 … 6` with other processes between them.

    With their node: `reader.0 … 3 on a`.
    """
    node = f" on {process.node}" if process.node else ""
    if process.step == 1 or process.count == 1:
        return name_range(process.first, process.last) + node
    stem, number = numbered(process.first)
    second = process.last if number is None else f"{stem}.{number + process.step}"
    return f"{process.first}, {name_range(second, process.last)}{node}"


def title(process: ProcessDiagram) -> str:
    """The processes of a diagram, and the one that is drawn if they are alike: `reader.0 … 3, as reader.0`."""
    return f"{processes(process)}, as {process.first}" if process.alike else processes(process)


def remark(range_: RangeDiagram) -> str:
    """Further properties of a range in words: what a program maps in it, with its access, and a common address."""
    return "; ".join(filter(None, (_elastic(range_), "same address in all processes" if range_.same_address else "")))


def _elastic(range_: RangeDiagram) -> str:
    """Entries whose chunks a program maps in a range, or else a zero page; empty if it is not elastic.

    A heap has its own name in their place.
    """
    if not range_.elastic:
        return ""
    if range_.elastic == (range_.first,):
        return f"heap{_elastic_access(range_)}"
    some = [*map(printable, range_.elastic[:_NAMED]), *(["…"] if len(range_.elastic) > _NAMED else [])]
    zero = ", else zero page" if range_.zero else ""
    return f"elastic: {', '.join(some)}{_elastic_access(range_)}{zero}"


def _elastic_access(range_: RangeDiagram) -> str:
    """Access of what a program maps, in brackets; empty if it is that of the mapped chunks."""
    found = range_.elastic_access
    if {*found} == {span.access for span in range_.pieces if span.chunk}:
        return ""
    return f" ({granted(found[0] if found else ()) if len(found) < 2 else 'access by part'})"  # noqa: PLR2004


def used_bytes(memory: MemoryDiagram) -> str:
    """Bytes of a memory that the layout uses: `32 MiB used`, or `up to 32 MiB used` if a program creates chunks."""
    return f"{'up to ' if memory.growing else ''}{rounded(memory.used)} used"


Locate = Callable[[Path], str | None]
"""Position in the spec of a path (`kv.yaml:14:3`), or None if it is unknown."""
SEVERAL = "*"
"""The letter of chunks of several marks, and of marks beyond the alphabet."""
_LETTERS = string.ascii_lowercase + string.ascii_uppercase


class DrawingLimits(Struct, frozen=True):
    """Numbers of elements that are drawn at most, so that the document of any layout stays small; the rest is counted.

    Ranges and rows of a process, blocks of a range's bar, and shares of a memory.
    """

    ranges: int
    rows: int
    blocks: int
    shares: int


class DrawingContext(Struct, frozen=True):
    """Letters by mark, hues and names by device, positions, addresses, flows of handles, and limits of one drawing.

    `prefix` distinguishes the ids of several drawings on one page.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]
    locate: Locate
    addresses: Addresses
    flows: Sequence[picture.HandleFlow]
    limits: DrawingLimits
    prefix: str = ""

    def letter(self, mark: str) -> str:
        """The letter of a mark, the same in the whole drawing."""
        return self.letters.get(mark, SEVERAL)

    def hue(self, device: str) -> int:
        """Index of a device's hue and texture."""
        return self.devices.get(device, 0) % HUES

    def fill(self, device: str) -> dict[str, str]:
        """Attributes that fill a shape with the hue of a device and its texture."""
        return {"fill": f"url(#{self.prefix}t{hue})"} if (hue := self.hue(device)) else {"class": "d0"}

    def position(self, path: Path) -> list[str]:
        """Position of a path in the spec as a list of one, or of none if it is unknown."""
        return [*filter(None, [self.written_at(path)])]

    def device_name(self, device: str) -> str:
        """A device with the names that the spec has for it: `gpu0 (prefill)`."""
        names = self.names.get(device, ())
        return f"{device} ({', '.join(names)})" if names else device

    def written_at(self, path: Path) -> str:
        """Position of a path in the spec, empty if it is unknown."""
        return (path and self.locate(path)) or ""

    def placement(self, span: MappingSpan) -> str:
        """The devices of a span with their names."""
        return ", ".join(map(self.device_name, short_names(span.locations))) + order(span)


def letters_and_devices(diagram: Diagram) -> tuple[Mapping[str, str], Mapping[str, int]]:
    """Letters of marks in the order of appearance, and numbers of devices in the order of memory."""
    letters = dict(zip(dict.fromkeys(picture.marks(diagram)), _LETTERS, strict=False))
    return letters, {device: index for index, device in enumerate(dict.fromkeys(picture.devices(diagram)))}


def drawing_context(drawing: Drawing) -> DrawingContext:
    """The context of a drawing."""
    diagram = drawing.diagram
    letters, devices = letters_and_devices(diagram)
    names = {memory.device: memory.shown_names for memory in diagram.memory}
    # Limits of each part, from limits of the whole drawing.
    processes = max(1, len(diagram.processes))
    ranges = min(24, max(2, 32 // processes))
    bars = sum(min(ranges, len(part.ranges)) for part in (diagram, *diagram.pictures))
    blocks, shares = 320 // max(1, bars), 96 // max(1, len(diagram.memory))
    limits = DrawingLimits(ranges, min(24, max(6, 96 // processes)), min(96, max(8, blocks)), min(24, max(6, shares)))
    return DrawingContext(letters, devices, names, drawing.locate, drawing.addresses, diagram.flows, limits)


class Hue(Struct, frozen=True):
    """Colour of a device in one scheme: the fill of its memory, and the edge and texture on it."""

    fill: str
    edge: str


class Scheme(Struct, frozen=True):
    """Colours of a drawing in one scheme, light or dark."""

    paper: str
    card: str
    line: str
    edge: str
    ink: str
    muted: str
    hole: str
    hues: tuple[Hue, ...]


LIGHT = Scheme(
    paper="#ffffff", card="#f7f8fa", line="#d5dae1", edge="#7d8795", ink="#1c2128", muted="#565f6b", hole="#ffffff",
    hues=(
        Hue("#86c7ee", "#10608f"), Hue("#f5bd4f", "#7f5200"), Hue("#5ec4a1", "#00573f"), Hue("#e3aac8", "#8b3a68"),
        Hue("#f3976a", "#8c3800"), Hue("#7aa7dc", "#003f73"), Hue("#e6dc6c", "#615a00"), Hue("#bcc2ca", "#4a515b"),
    ),
)  # fmt: skip
DARK = Scheme(
    paper="#0e1116", card="#161b22", line="#2d343d", edge="#75808d", ink="#e8edf3", muted="#a3adb9", hole="#0e1116",
    hues=(
        Hue("#1d5f8a", "#8fd0f7"), Hue("#7c5405", "#ffcc66"), Hue("#0d6049", "#6fdab6"), Hue("#7c3d60", "#f0b8d6"),
        Hue("#85401a", "#ffab7f"), Hue("#1f4c80", "#9cc3f0"), Hue("#5c5600", "#f0e778"), Hue("#4b535e", "#d0d6dd"),
    ),
)  # fmt: skip
HUES = len(LIGHT.hues)

# Strokes on a tile of 8 by 8 pixels, one for each hue; the first hue has none.
TEXTURES = (
    "", "M-2 2L2 -2M0 8L8 0M6 10L10 6", "M1 2h2M5 6h2", "M0 4H8", "M4 0V8", "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M0 4H8M4 0V8", "M0 2h4M4 6h4",
)  # fmt: skip


TINTS = (
    Hue("#c3e3f6", "#2f7fae"), Hue("#f9dfa9", "#a86e00"), Hue("#a9dfcc", "#00704f"), Hue("#efd3e2", "#9c4a77"),
    Hue("#f5c6a5", "#a84300"), Hue("#a9cde6", "#004d80"), Hue("#f1e9a0", "#756900"), Hue("#d9d9d9", "#595959"),
)  # fmt: skip
"""Fills and borders of nodes in a graph, whose text is black."""
PLAIN = Hue("#ffffff", "#57606a")
"""Tint of nodes that are not memory."""


MOST_SPANS = 64
"""Drawn spans of one mark that are compared with later ones; a drawing shows no more of them apart."""


class SpanPosition(Struct, frozen=True):
    """Position of a drawn span: its range, the index of its block, and its offset."""

    range: str
    block: int
    offset: int


class DrawnSpans:
    """The spans drawn so far of chunks that are mapped more than once."""

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[int, int, SpanPosition]]] = {}

    def add(self, span: MappingSpan, count: int, position: SpanPosition) -> SpanPosition | None:
        """Record a span of `count` equal ranges; return the position of an earlier one with some of its chunks.

        A span of the same range comes before those of other ranges.
        """
        if not span.elsewhere:
            return None
        first, last = span.indices(count)
        spans = self._spans.setdefault(span.chunk, [])
        common = [earlier for start, stop, earlier in spans if first < stop and start < last]
        found = next((each for each in common if each.range == position.range), common[0] if common else None)
        if len(spans) < MOST_SPANS:
            spans.append((first, last, position))
        return found
