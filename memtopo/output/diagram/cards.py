"""Cards of ranges: their mappings, the devices with access, and memory that is mapped more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from memtopo.common.units import exact, rounded
from memtopo.geometry.diagram import MappingSpan, MemoryDiagram, MemoryShare, RangeDiagram
from memtopo.output.diagram import notation
from memtopo.output.diagram.bar import MOST_LANES, BarBlock, Card, Heading, labelled_bar, lane_devices
from memtopo.output.diagram.markup import Box, hovered, number, path, rect
from memtopo.output.diagram.notation import SEVERAL, DrawingContext, DrawnSpans, SpanPosition

EarlierSpans = Mapping[int, SpanPosition]
"""Positions of earlier spans with some of the same chunks, by the index of a block."""


def earlier_spans(ranges: Iterable[RangeDiagram], context: DrawingContext) -> Iterator[EarlierSpans]:
    """For each range the blocks with chunks that an earlier block has, and the position of that block."""
    drawn = DrawnSpans()
    for range_ in ranges:
        found: dict[int, SpanPosition] = {}
        for index, spans in _numbered(range_, context):
            span = spans[0]
            if len(spans) == 1 and span.chunk:
                earlier = drawn.add(span, range_.count, SpanPosition(range_.first, index, span.offset))
                found |= {index: earlier} if earlier else {}
        yield found


def range_card(range_: RangeDiagram, process: str, context: DrawingContext, earlier: EarlierSpans) -> Card:
    """The card of one range, or of equal neighbours; `earlier` is its result of `earlier_spans`."""
    blocks = list(_blocks(range_, context, earlier, context.addresses.get((process, range_.first))))
    heading = Heading(
        "RANGE" if range_.count == 1 else f"{range_.count:,} RANGES",
        notation.name_range(range_.first, range_.last),
        notation.multiple(range_.count, range_.size),
        tuple(_notes(range_, blocks)),
    )
    return Card(heading, lambda room, tall: labelled_bar(blocks, room, tall, context), range_.count)


def _notes(range_: RangeDiagram, blocks: Sequence[BarBlock]) -> Iterator[str]:
    if remark := notation.remark(range_):
        yield remark
    if not range_.mapped:
        yield "nothing mapped"
        return
    if range_.mapped < range_.size:
        yield f"{rounded(range_.mapped)} mapped"
    devices = lane_devices(blocks)
    if len(devices) > MOST_LANES:
        yield notation.granted(next(block.access for block in blocks if block.mark))
    if not devices:
        yield "no access"


def _blocks(
    range_: RangeDiagram, context: DrawingContext, earlier: EarlierSpans, address: int | None
) -> Iterator[BarBlock]:
    for index, spans in _numbered(range_, context):
        if len(spans) > 1:
            yield _joint_block(spans, range_, context)
        else:
            yield _block(spans[0], range_, context, earlier.get(index), address)


def _numbered(range_: RangeDiagram, context: DrawingContext) -> Iterator[tuple[int, list[MappingSpan]]]:
    """Spans of each block of a range, with its index."""
    return enumerate(_grouped(range_.pieces, range_.size, context.limits.blocks))


def _grouped(spans: Sequence[MappingSpan], size: int, most: int) -> Iterator[list[MappingSpan]]:
    """Spans one by one, or, if they are more than `most`, those together that begin in the same part of a range."""
    if len(spans) <= most:
        yield from ([span] for span in spans)
        return
    for _, group in groupby(spans, key=lambda span: span.offset * most // size):
        yield list(group)


def _block(
    span: MappingSpan, range_: RangeDiagram, context: DrawingContext, earlier: SpanPosition | None, address: int | None
) -> BarBlock:
    words = notation.span_words(span, range_.count)
    origin = f"from {span.origin}" if span.origin else ""
    label = f"{words.size} at {words.at}", _locations(span), origin, words.parts, _again(range_, earlier), words.in_each
    return BarBlock(
        size=span.size,
        mark=span.chunk,
        count=span.count,
        devices=span.locations,
        access=span.access,
        name=words.name,
        words=tuple(filter(None, label)),
        tooltip="\n".join(_tooltip(span, words.name, range_, context, address)),
        twin=earlier.block if earlier and earlier.range == range_.first else None,
    )


def _joint_block(spans: Sequence[MappingSpan], range_: RangeDiagram, context: DrawingContext) -> BarBlock:
    """One block for many spans, with the access of the first mapping."""
    size = sum(span.size for span in spans)
    mapped = [span for span in spans if span.chunk]
    tooltip = _joint_tooltip(spans, mapped, range_, context)
    at = f"{rounded(size)} at {notation.offset(spans[0].offset)}"
    if not mapped:
        return BarBlock(size, words=(at,), tooltip=tooltip)
    count = sum(span.count for span in mapped)
    return BarBlock(
        size=size,
        mark=mapped[0].chunk if len({span.chunk for span in mapped}) == 1 else SEVERAL,
        count=count,
        devices=tuple(dict.fromkeys(name for span in mapped for name in span.locations)),
        access=mapped[0].access,
        name=f"{mapped[0].first} … {mapped[-1].last}",
        words=(f"{count:,} mappings, {at}",),
        tooltip=tooltip,
    )


def _locations(span: MappingSpan) -> str:
    in_turn = " round-robin" if len(span.locations) > 1 and span.count > len(span.locations) else ""
    order = notation.order(span) or in_turn
    handles = f" ({', '.join(span.handles)})" if span.handles else ""
    return f"{', '.join(notation.short_names(span.locations))}{order}{handles}"


def _again(range_: RangeDiagram, earlier: SpanPosition | None) -> str:
    if earlier is None:
        return ""
    other = f" of {earlier.range}" if earlier.range != range_.first else ""
    return f"same memory as at {notation.offset(earlier.offset)}{other}"


def _tooltip(
    span: MappingSpan, name: str, range_: RangeDiagram, context: DrawingContext, address: int | None
) -> Iterator[str]:
    yield name or "hole: addresses without memory"
    yield f"{_exact_size(span)} at {exact(span.offset)} of {notation.name_range(range_.first, range_.last)}"
    if address is not None:
        yield f"address 0x{address + span.offset:x}"
    if span.chunk:
        yield f"on {context.placement(span)}"
        yield f"handles {', '.join(span.handles) or 'none'}"
        yield f"access {notation.granted(span.access)}" if span.access else "no access"
        if span.origin:
            yield f"from {span.origin}"
        yield from (f"part {part.name}: {exact(part.size)} at {exact(part.offset)}" for part in span.parts)
    yield from context.position(span.path)


def _joint_tooltip(
    spans: Sequence[MappingSpan], mapped: Sequence[MappingSpan], range_: RangeDiagram, context: DrawingContext
) -> str:
    size = sum(span.size for span in spans)
    mappings = f"{sum(span.count for span in mapped):,} mappings"
    holes = f" and {len(spans) - len(mapped):,} holes" if len(mapped) < len(spans) else ""
    at = f"{rounded(size)} at {exact(spans[0].offset)} of {range_.first}"
    return "\n".join([mappings + holes, at, *context.position(mapped[0].path if mapped else range_.path)])


def _exact_size(span: MappingSpan) -> str:
    size = exact(span.size)
    return f"{notation.multiple(span.count, span.bytes_each)} = {size}" if span.count > 1 else size


_TOTAL_BAR = 14.0
_FAN = 26.0
_LOWEST = 64.0


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
    blocks = [_memory_card_block(share, memory, context) for share in memory.shares[: context.limits.shares]]
    if rest := memory.shares[context.limits.shares :]:
        blocks.append(_rest(rest, memory))
    blocks = blocks or [BarBlock(size=1, tooltip="nothing used")]  # in a state in which all of it is gone
    side = _TOTAL_BAR + _FAN if memory.total is not None else 0.0
    beside = side, lambda top, end: _total_bar(memory, top, end)
    return labelled_bar(blocks, room, tall, context, lowest=_LOWEST, beside=beside)


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


def _memory_card_block(share: MemoryShare, memory: MemoryDiagram, context: DrawingContext) -> BarBlock:
    size = notation.multiple(share.count, share.bytes_each)
    tooltip = [
        share.label or share.chunk,
        f"{size} on {context.device_name(memory.device)}",
        *context.position(share.path),
    ]
    return BarBlock(
        size=share.size,
        mark=share.chunk,
        count=share.count,
        devices=(memory.device,),
        name=share.label or share.chunk,
        words=(size,),
        tooltip="\n".join(tooltip),
    )


def _rest(shares: tuple[MemoryShare, ...], memory: MemoryDiagram) -> BarBlock:
    size, count = sum(share.size for share in shares), sum(share.count for share in shares)
    text = f"{len(shares):,} more kinds, {rounded(size)}"
    return BarBlock(size, SEVERAL, count, (memory.device,), name=f"{shares[0].chunk} …", words=(text,), tooltip=text)
