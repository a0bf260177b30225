"""Memories as cards: how little or much of one is used, and by whose chunks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from memtopo.common.units import rounded
from memtopo.output.diagram import labels, notation
from memtopo.output.diagram.bar import LEAST, Block, draw_bar, lengths
from memtopo.output.diagram.card import Card, Heading
from memtopo.output.diagram.context import MANY, Pen
from memtopo.output.diagram.markup import Box, hovered, number, path, rect
from memtopo.output.diagram.model import MemoryDiagram, MemoryShare

_WHOLE = 14.0  # the width of the bar that shows all of a memory
_FAN = 26.0
_LOWEST = 64.0
_WIDE = 50.0


def card(shown: MemoryDiagram, pen: Pen) -> Card:
    """One memory as a card: a thin bar of all of it, and a wide one of what these chunks use."""
    head = Heading(
        "MEMORY", " ".join([shown.device, *shown.names]), f"{rounded(shown.used)} used", tuple(_notes(shown))
    )
    return Card(head, lambda room, tall: _diagram(shown, room, tall, pen))


def _notes(shown: MemoryDiagram) -> Iterator[str]:
    if shown.total is not None:
        yield f"{rounded(shown.free or 0)} free of {rounded(shown.total)}"
    if shown.taken:
        yield f"{rounded(shown.taken)} taken by others"


def _diagram(shown: MemoryDiagram, room: float, tall: float, pen: Pen) -> Box:
    blocks = [_block(share, shown, pen) for share in shown.shares[: pen.most.shares]]
    if rest := shown.shares[pen.most.shares :]:
        blocks.append(_rest(rest, shown))
    left = _WHOLE + _FAN if shown.total is not None else 0.0
    named = labels.labels(blocks, room - left - _WIDE)
    height = max(_LOWEST, labels.height(named), tall - 5)
    sizes = lengths([block.size for block in blocks], height, LEAST)
    *tops, end = accumulate(sizes, initial=4.0)
    parts = [
        *draw_bar(blocks, tops, end, left, _WIDE, pen),
        *labels.drawn(named, tops, end, left + _WIDE, pen, start=4),
    ]
    return Box(room, end + 1, "".join([*_whole(shown, 4.0, end), *parts]))


def _whole(shown: MemoryDiagram, top: float, end: float) -> Iterator[str]:
    """All of a memory to scale, and lines from the part that is used to what it is used for."""
    if shown.total is None:
        return
    height = end - top
    used = max(2.0, shown.used * height / shown.total)
    taken = (shown.taken or 0) * height / shown.total
    told = f"{rounded(shown.used)} of {rounded(shown.total)} used"
    right, fan = number(_WHOLE), number(_WHOLE + _FAN)
    yield path([f"M{right} {number(top)}H{fan}V{number(end)}L{right} {number(top + used)}z"], "y")
    drawn = [rect(0, top, _WHOLE, height, "o"), rect(0, top, _WHOLE, used, "u")]
    if taken:
        drawn.append(rect(0, end - taken, _WHOLE, taken, "d"))
    yield hovered(told, drawn)


def _block(share: MemoryShare, shown: MemoryDiagram, pen: Pen) -> Block:
    return Block(
        size=share.size,
        mark=share.chunk,
        count=share.count,
        devices=(shown.device,),
        name=share.chunk,
        words=(notation.multiple(share.count, share.bytes_each),),
        hover=_tooltip(share, shown.device, pen),
    )


def _rest(shares: tuple[MemoryShare, ...], shown: MemoryDiagram) -> Block:
    size, count = sum(share.size for share in shares), sum(share.count for share in shares)
    told = f"{len(shares):,} more kinds, {rounded(size)}"
    return Block(size, MANY, count, (shown.device,), name=f"{shares[0].chunk} …", words=(told,), hover=told)


def _tooltip(shown: MemoryShare, device: str, pen: Pen) -> str:
    """What one memory holds of one kind of chunk."""
    told = [shown.chunk, f"{notation.multiple(shown.count, shown.bytes_each)} on {pen.called(device)}"]
    return "\n".join([*told, *pen.written(shown.path)])
