"""Ranges as cards: what is mapped where, who may use it, and what was seen before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.common.units import rounded
from memtopo.output.diagram import hover, lanes, wording
from memtopo.output.diagram.blocks import Block, close
from memtopo.output.diagram.card import Card, Heading, diagram
from memtopo.output.diagram.model import MappingSpan, RangeDiagram
from memtopo.output.diagram.pen import MANY, Pen
from memtopo.output.diagram.seen import Seen, Sight


def card(shown: RangeDiagram, process: str, pen: Pen, seen: Seen) -> Card:
    """One range, or neighbours that look alike, as a card."""
    blocks = list(_blocks(shown, pen, seen, pen.addresses.get((process, shown.first))))
    head = Heading(
        "RANGE" if shown.count == 1 else f"{shown.count:,} RANGES",
        wording.subjects(shown.first, shown.last),
        wording.multiple(shown.count, shown.size),
        tuple(_notes(shown, blocks)),
    )
    return Card(head, lambda room, tall: diagram(blocks, room, tall, pen), shown.count)


def _notes(shown: RangeDiagram, blocks: Sequence[Block]) -> Iterator[str]:
    if not shown.mapped:
        yield "nothing mapped"
    elif shown.mapped < shown.size:
        yield f"{rounded(shown.mapped)} mapped"
    if shown.mapped and len(lanes.devices(blocks)) > lanes.MOST:
        yield wording.granted(next(block.access for block in blocks if block.mark))
    if shown.mapped and not lanes.devices(blocks):
        yield "no access"


def _blocks(shown: RangeDiagram, pen: Pen, seen: Seen, base: int | None) -> Iterator[Block]:
    for turn, group in enumerate(close(shown.pieces, shown.size, pen.most.blocks)):
        if len(group) == 1:
            yield _block(group[0], shown, turn, pen, seen, base)
        else:
            yield _many(group, shown, pen)


def _block(piece: MappingSpan, shown: RangeDiagram, turn: int, pen: Pen, seen: Seen, base: int | None) -> Block:
    told = hover.piece(piece, shown, pen, base)
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
        name=wording.of_all(piece, shown.count),
        words=(_at(piece), _where(piece), *_sight(piece, shown, before)),
        hover=told,
        twin=before.block if before and same else None,
    )


def _many(group: Sequence[MappingSpan], shown: RangeDiagram, pen: Pen) -> Block:
    """Pieces that are too many to be told apart; the first mapping among them stands for all."""
    size = sum(piece.size for piece in group)
    mapped = [piece for piece in group if piece.chunk]
    told = hover.pieces(group, shown, pen)
    if not mapped:
        return Block(size, words=(f"{rounded(size)} at {wording.offset(group[0].offset)}",), hover=told)
    count = sum(piece.count for piece in mapped)
    return Block(
        size=size,
        mark=mapped[0].chunk if len({piece.chunk for piece in mapped}) == 1 else MANY,
        count=count,
        devices=tuple(dict.fromkeys(name for piece in mapped for name in piece.locations)),
        access=mapped[0].access,
        name=f"{mapped[0].first} … {mapped[-1].last}",
        words=(f"{count:,} mappings, {rounded(size)} at {wording.offset(group[0].offset)}",),
        hover=told,
    )


def _at(piece: MappingSpan) -> str:
    return f"{wording.multiple(max(piece.count, 1), piece.bytes_each or piece.size)} at {wording.offset(piece.offset)}"


def _where(piece: MappingSpan) -> str:
    turn = " in turn" if len(piece.locations) > 1 and piece.count > len(piece.locations) else ""
    handles = f" ({', '.join(piece.handles)})" if piece.handles else ""
    return f"{', '.join(wording.few(piece.locations))}{turn}{handles}"


def _sight(piece: MappingSpan, shown: RangeDiagram, before: Sight | None) -> Iterator[str]:
    if piece.origin:
        yield f"from {piece.origin}"
    if before:
        yield f"same memory as at {wording.offset(before.offset)}" + (
            f" of {before.range}" if before.range != shown.first else ""
        )
    if shown.count > 1:
        if not piece.step:
            yield "same in each"
        elif piece.step != piece.count:
            yield f"{piece.step:+,} in each"
