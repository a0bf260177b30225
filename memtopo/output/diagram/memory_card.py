"""Cards of memories: the used part of each, and the chunks that use it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from memtopo.common.units import rounded
from memtopo.geometry.diagram import MemoryDiagram, MemoryShare
from memtopo.output.diagram import notation
from memtopo.output.diagram.bar import SHORTEST_BLOCK, Block, draw_bar, lengths
from memtopo.output.diagram.card import Card, Heading, bar_labels, draw_labels, labels_height
from memtopo.output.diagram.context import SEVERAL, DrawingContext
from memtopo.output.diagram.markup import Box, hovered, number, path, rect

_TOTAL_BAR = 14.0
_FAN = 26.0
_LOWEST = 64.0
_SHARES_BAR = 50.0


def memory_card(memory: MemoryDiagram, context: DrawingContext) -> Card:
    """A card with a thin bar of the whole memory, and a wide one of its used part."""
    name = " ".join([memory.device, *memory.shown_names])
    heading = Heading("MEMORY", name, notation.used_bytes(memory), tuple(free_and_taken(memory)))
    return Card(heading, lambda room, tall: _bars(memory, room, tall, context))


def free_and_taken(memory: MemoryDiagram) -> Iterator[str]:
    """The free memory, and the memory taken by other processes, as far as they are known."""
    if memory.total is not None:
        yield f"{rounded(memory.free or 0)} free of {rounded(memory.total)}"
    if memory.taken:
        yield f"{rounded(memory.taken)} taken by others"


def _bars(memory: MemoryDiagram, room: float, tall: float, context: DrawingContext) -> Box:
    blocks = [_block(share, memory, context) for share in memory.shares[: context.limits.shares]]
    if rest := memory.shares[context.limits.shares :]:
        blocks.append(_rest(rest, memory))
    blocks = blocks or [Block(size=1, tooltip="nothing used")]  # in a state in which all of it is gone
    left = _TOTAL_BAR + _FAN if memory.total is not None else 0.0
    labels = bar_labels(blocks, room - left - _SHARES_BAR)
    height = max(_LOWEST, labels_height(labels), tall - 5)
    sizes = lengths([block.size for block in blocks], height, SHORTEST_BLOCK)
    *tops, end = accumulate(sizes, initial=4.0)
    parts = [
        *_total_bar(memory, 4.0, end),
        *draw_bar(blocks, tops, end, left, _SHARES_BAR, context),
        *draw_labels(labels, tops, end, left + _SHARES_BAR, context, start=4),
    ]
    return Box(room, end + 1, "".join(parts))


def _total_bar(memory: MemoryDiagram, top: float, end: float) -> Iterator[str]:
    """The whole memory to scale, and lines from its used part to the bar of shares."""
    if memory.total is None:
        return
    height = end - top
    # Managed memory may exceed its GPU.
    used = min(height, max(2.0, memory.used * height / memory.total)) if memory.used else 0.0
    taken = (memory.taken or 0) * height / memory.total
    tooltip = f"{rounded(memory.used)} of {rounded(memory.total)} used"
    right, fan = number(_TOTAL_BAR), number(_TOTAL_BAR + _FAN)
    yield path([f"M{right} {number(top)}H{fan}V{number(end)}L{right} {number(top + used)}z"], "y")
    parts = [rect(0, top, _TOTAL_BAR, height, "o"), rect(0, top, _TOTAL_BAR, used, "u")]
    if taken:
        parts.append(rect(0, end - taken, _TOTAL_BAR, taken, "d"))
    yield hovered(tooltip, parts)


def _block(share: MemoryShare, memory: MemoryDiagram, context: DrawingContext) -> Block:
    size = notation.multiple(share.count, share.bytes_each)
    tooltip = [
        share.label or share.chunk,
        f"{size} on {context.device_name(memory.device)}",
        *context.position(share.path),
    ]
    return Block(
        size=share.size,
        mark=share.chunk,
        count=share.count,
        devices=(memory.device,),
        name=share.label or share.chunk,
        words=(size,),
        tooltip="\n".join(tooltip),
    )


def _rest(shares: tuple[MemoryShare, ...], memory: MemoryDiagram) -> Block:
    size, count = sum(share.size for share in shares), sum(share.count for share in shares)
    text = f"{len(shares):,} more kinds, {rounded(size)}"
    return Block(size, SEVERAL, count, (memory.device,), name=f"{shares[0].chunk} …", words=(text,), tooltip=text)
