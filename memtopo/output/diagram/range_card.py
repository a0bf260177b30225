"""Ranges as cards: what is mapped where, who may use it, and what was seen before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memtopo.common.units import exact, rounded
from memtopo.output.diagram import bar, notation
from memtopo.output.diagram.bar import Block, close
from memtopo.output.diagram.card import Card, Heading, diagram
from memtopo.output.diagram.context import MANY, Pen
from memtopo.output.diagram.model import MappingSpan, RangeDiagram


def card(shown: RangeDiagram, process: str, pen: Pen, seen: Seen) -> Card:
    """One range, or neighbours that look alike, as a card."""
    blocks = list(_blocks(shown, pen, seen, pen.addresses.get((process, shown.first))))
    head = Heading(
        "RANGE" if shown.count == 1 else f"{shown.count:,} RANGES",
        notation.subjects(shown.first, shown.last),
        notation.multiple(shown.count, shown.size),
        tuple(_notes(shown, blocks)),
    )
    return Card(head, lambda room, tall: diagram(blocks, room, tall, pen), shown.count)


def _notes(shown: RangeDiagram, blocks: Sequence[Block]) -> Iterator[str]:
    if not shown.mapped:
        yield "nothing mapped"
    elif shown.mapped < shown.size:
        yield f"{rounded(shown.mapped)} mapped"
    if shown.mapped and len(bar.lane_devices(blocks)) > bar.MOST_LANES:
        yield notation.granted(next(block.access for block in blocks if block.mark))
    if shown.mapped and not bar.lane_devices(blocks):
        yield "no access"


def _blocks(shown: RangeDiagram, pen: Pen, seen: Seen, base: int | None) -> Iterator[Block]:
    for turn, group in enumerate(close(shown.pieces, shown.size, pen.most.blocks)):
        if len(group) == 1:
            yield _block(group[0], shown, turn, pen, seen, base)
        else:
            yield _many(group, shown, pen)


def _block(piece: MappingSpan, shown: RangeDiagram, turn: int, pen: Pen, seen: Seen, base: int | None) -> Block:
    told = span_tooltip(piece, shown, pen, base)
    if not piece.chunk:
        return Block(piece.size, words=(_at(piece),), hover=told)
    before = seen.before(piece, shown.count, Sight(shown.first, turn, piece.offset))
    same = before is not None and before.range == shown.first
    return Block(
        size=piece.size,
        mark=piece.chunk,
        count=piece.count,
        devices=piece.locations,
        access=piece.access,
        name=notation.of_all(piece, shown.count),
        words=(_at(piece), _where(piece), *_sight(piece, shown, before)),
        hover=told,
        twin=before.block if before and same else None,
    )


def _many(group: Sequence[MappingSpan], shown: RangeDiagram, pen: Pen) -> Block:
    """Pieces that are too many to be told apart; the first mapping among them stands for all."""
    size = sum(piece.size for piece in group)
    mapped = [piece for piece in group if piece.chunk]
    told = spans_tooltip(group, shown, pen)
    if not mapped:
        return Block(size, words=(f"{rounded(size)} at {notation.offset(group[0].offset)}",), hover=told)
    count = sum(piece.count for piece in mapped)
    return Block(
        size=size,
        mark=mapped[0].chunk if len({piece.chunk for piece in mapped}) == 1 else MANY,
        count=count,
        devices=tuple(dict.fromkeys(name for piece in mapped for name in piece.locations)),
        access=mapped[0].access,
        name=f"{mapped[0].first} … {mapped[-1].last}",
        words=(f"{count:,} mappings, {rounded(size)} at {notation.offset(group[0].offset)}",),
        hover=told,
    )


def _at(piece: MappingSpan) -> str:
    return (
        f"{notation.multiple(max(piece.count, 1), piece.bytes_each or piece.size)} at {notation.offset(piece.offset)}"
    )


def _where(piece: MappingSpan) -> str:
    turn = " in turn" if len(piece.locations) > 1 and piece.count > len(piece.locations) else ""
    handles = f" ({', '.join(piece.handles)})" if piece.handles else ""
    return f"{', '.join(notation.few(piece.locations))}{turn}{handles}"


def _sight(piece: MappingSpan, shown: RangeDiagram, before: Sight | None) -> Iterator[str]:
    if piece.origin:
        yield f"from {piece.origin}"
    if before:
        yield f"same memory as at {notation.offset(before.offset)}" + (
            f" of {before.range}" if before.range != shown.first else ""
        )
    if shown.count > 1:
        if not piece.step:
            yield "same in each"
        elif piece.step != piece.count:
            yield f"{piece.step:+,} in each"


MOST_SEEN = 64
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
        if len(spans) < MOST_SEEN:
            spans.append((first, last, sight))
        return found


def span_tooltip(shown: MappingSpan, range_: RangeDiagram, pen: Pen, base: int | None) -> str:
    """One piece of a range; `base` is where the range begins, if that is known."""
    return "\n".join(_span_lines(shown, range_, pen, base))


def spans_tooltip(found: Sequence[MappingSpan], range_: RangeDiagram, pen: Pen) -> str:
    """Many pieces of a range that are drawn as one."""
    size = sum(each.size for each in found)
    mapped = [each for each in found if each.chunk]
    of = f"{sum(each.count for each in mapped):,} mappings"
    told = [f"{of} and {len(found) - len(mapped):,} holes" if len(mapped) < len(found) else of]
    told.append(f"{rounded(size)} at {exact(found[0].offset)} of {range_.first}")
    return "\n".join([*told, *pen.written(mapped[0].path if mapped else range_.path)])


def _span_lines(shown: MappingSpan, range_: RangeDiagram, pen: Pen, base: int | None) -> Iterator[str]:
    yield notation.of_all(shown, range_.count) if shown.chunk else "hole: addresses without memory"
    yield f"{_size(shown)} at {exact(shown.offset)} of {notation.subjects(range_.first, range_.last)}"
    if base is not None:
        yield f"address 0x{base + shown.offset:x}"
    if shown.chunk:
        yield f"on {', '.join(map(pen.called, notation.few(shown.locations)))}"
        yield f"handles {', '.join(shown.handles) or 'none'}"
        yield f"access {notation.granted(shown.access)}" if shown.access else "no access"
        if shown.origin:
            yield f"from {shown.origin}"
    yield from pen.written(shown.path)


def _size(shown: MappingSpan) -> str:
    whole = exact(shown.size)
    return f"{notation.multiple(shown.count, shown.bytes_each)} = {whole}" if shown.count > 1 else whole
