"""Cards of ranges and memories, with their mappings, and rows of what a process has beside its ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct

from memtopo.common.units import by_key, exact, rounded
from memtopo.diagnostics.model import Path
from memtopo.geometry.diagram import Diagram, HandleFlow, MappingSpan, MemoryDiagram, RangeDiagram, Resource
from memtopo.output.diagram import markup, notation
from memtopo.output.diagram.bar import MOST_LANES, BarBlock, Card, badge, filled, labelled_bar, lane_devices, stripe
from memtopo.output.diagram.markup import BODY, NAME, Box, fitting, number, path, placed, rect, stacked, text_at, width
from memtopo.output.diagram.notation import SEVERAL, DrawingContext, DrawnSpans, SpanPosition


def range_cards(ranges: Iterable[RangeDiagram], process: str, context: DrawingContext) -> Iterator[Card]:
    """The card of each range, or of equal neighbours; a block names the earlier one that has the same memory."""
    drawn = DrawnSpans()
    for range_ in ranges:
        address = context.addresses.get((process, range_.first))
        blocks = []
        for index, (span, *more) in enumerate(_grouped(range_, context)):
            if more:
                blocks.append(_joint_block([span, *more], range_, context))
            else:
                earlier = drawn.add(span, range_.count, SpanPosition(range_.first, index, span.offset))
                blocks.append(_block(span, range_, context, earlier, address))
        kind = "RANGE" if range_.count == 1 else f"{range_.count:,} RANGES"
        name, size = notation.name_range(range_.first, range_.last), notation.multiple(range_.count, range_.size)
        draw = partial(labelled_bar, blocks, context=context)
        yield Card(kind, name, size, [*_notes(range_, blocks)], draw, range_.count)


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


def _grouped(range_: RangeDiagram, context: DrawingContext) -> Iterator[list[MappingSpan]]:
    """Spans of each block: one, or in a range with very many all that begin in the same part of it."""
    spans, most = range_.pieces, context.limits.blocks
    if len(spans) <= most:
        yield from ([span] for span in spans)
        return
    for _, group in groupby(spans, key=lambda span: span.offset * most // range_.size):
        yield list(group)


def _block(
    span: MappingSpan, range_: RangeDiagram, context: DrawingContext, earlier: SpanPosition | None, address: int | None
) -> BarBlock:
    words = notation.span_words(span, range_.count)
    again, twin = "", None
    if earlier:
        twin = earlier.block if earlier.range == range_.first else None
        other = f" of {earlier.range}" if twin is None else ""
        again = f"same memory as at {notation.offset(earlier.offset)}{other}"
    origin = f"from {span.origin}" if span.origin else ""
    in_turn = " round-robin" if len(span.locations) > 1 and span.count > len(span.locations) else ""
    order = notation.order(span) or in_turn
    handles = f" ({', '.join(span.handles)})" if span.handles else ""
    locations = f"{', '.join(notation.short_names(span.locations))}{order}{handles}"
    label = f"{words.size} at {words.at}", locations, origin, words.parts, again, words.in_each
    return BarBlock(
        size=span.size,
        mark=span.chunk,
        count=span.count,
        devices=span.locations,
        access=span.access,
        name=words.name,
        words=tuple(filter(None, label)),
        tooltip="\n".join(_tooltip(span, words.name, range_, context, address)),
        twin=twin,
    )


def _joint_block(spans: Sequence[MappingSpan], range_: RangeDiagram, context: DrawingContext) -> BarBlock:
    """One block for many spans, with the access of the first mapping."""
    size = sum(span.size for span in spans)
    mapped = [span for span in spans if span.chunk]
    count, holes = sum(span.count for span in mapped), len(spans) - len(mapped)
    position = context.position(mapped[0].path if mapped else range_.path)
    content = f"{count:,} mappings" + (f" and {holes:,} holes" if holes else "")
    tooltip = "\n".join([content, f"{rounded(size)} at {exact(spans[0].offset)} of {range_.first}", *position])
    at = f"{rounded(size)} at {notation.offset(spans[0].offset)}"
    if not mapped:
        return BarBlock(size, words=(at,), tooltip=tooltip)
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


def _tooltip(
    span: MappingSpan, name: str, range_: RangeDiagram, context: DrawingContext, address: int | None
) -> Iterator[str]:
    yield name or "hole: addresses without memory"
    equal = f"{notation.multiple(span.count, span.bytes_each)} = " if span.count > 1 else ""
    of = notation.name_range(range_.first, range_.last)
    yield f"{equal}{exact(span.size)} at {exact(span.offset)} of {of}"
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


_TOTAL_BAR = 14.0
_FAN = 26.0
_LOWEST = 64.0


def memory_card(memory: MemoryDiagram, context: DrawingContext) -> Card:
    """A card with a thin bar of the whole memory, and a wide one of its used part."""
    name, used = " ".join([memory.device, *memory.shown_names]), notation.used_bytes(memory)
    shares, rest = memory.shares[: context.limits.shares], memory.shares[context.limits.shares :]
    blocks, devices = [], (memory.device,)
    for share in shares:
        size, label = notation.multiple(share.count, share.bytes_each), share.label or share.chunk
        lines = [label, f"{size} on {context.device_name(memory.device)}", *context.position(share.path)]
        words, tooltip = (size,), "\n".join(lines)
        blocks.append(BarBlock(share.size, share.chunk, share.count, devices, (), label, words, tooltip))
    if rest:
        total, count = sum(share.size for share in rest), sum(share.count for share in rest)
        text = f"{len(rest):,} more kinds, {rounded(total)}"
        blocks.append(BarBlock(total, SEVERAL, count, devices, (), f"{rest[0].chunk} …", (text,), text))
    blocks = blocks or [BarBlock(size=1, tooltip="nothing used")]  # in a state in which all of it is gone
    side = _TOTAL_BAR + _FAN if memory.total is not None else 0.0
    beside = side, partial(_total_bar, memory)
    draw = partial(labelled_bar, blocks, context=context, lowest=_LOWEST, beside=beside)
    return Card("MEMORY", name, used, [*free_and_taken(memory)], draw)


def free_and_taken(memory: MemoryDiagram) -> Iterator[str]:
    """The free memory, and the memory taken by other processes, as far as they are known."""
    if memory.total is not None:
        yield f"{rounded(memory.free or 0)} free of {rounded(memory.total)}"
    if memory.taken:
        yield f"{rounded(memory.taken)} taken by others"


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
    yield markup.hovered(tooltip, parts)


MOST_PARTS = 12
_TAG, _WIDEST_TAG = 66.0, 120.0
_PADDING, _TAG_GAP = 12.0, 8.0
_ROW_HEIGHT, _LINE = 34.0, 16.0
_ROOM_FOR_TEXT = 200.0  # in the column of the name
_PART_HEIGHT, _TRACK_HEIGHT = 20.0, 10.0
_SHORTEST_PART = 3.0
_PART_GAP = 16.0


class DrawnRow(Struct, frozen=True):
    """The kind of an entry, the mark of its memory, its name, its properties in words, and its parts.

    Parts are drawn in the colour of `device`, in a whole of `size` bytes.
    """

    tag: str
    mark: str
    name: str
    words: tuple[str, ...]
    path: Path
    port: markup.Port = ()
    parts: tuple[Resource, ...] = ()
    device: str = ""
    size: int = 0


def rows_of(diagram: Diagram, process: str, flows: Sequence[HandleFlow]) -> list[DrawnRow]:
    """The rows of a process: imports, exports, and resources created here or made by another API."""
    imports = [flow for flow in flows if flow.target == process and not flow.external]
    resources = [each for each in diagram.things if not each.origin or each.external]
    rows = [*_import_rows(diagram, process, imports)]
    for export in diagram.exports:
        chunks = notation.name_range(export.first, export.last)
        of = () if chunks == export.name else (chunks,)
        text = (*of, *_size(export.count, export.bytes_each), export.via)
        rows.append(DrawnRow("export", export.mark, export.name, text, export.path, ("export", process, export.name)))
    for each in resources:
        where = ", ".join(notation.short_names(each.locations))
        origin = f"from {each.origin}" if each.origin else ""
        text = (*_size(each.count, each.bytes_each), *filter(None, (where, origin, each.via)), *each.notes)
        whole = each.parts, "".join(each.locations[:1]), each.bytes_each
        rows.append(DrawnRow(each.kind, each.mark, each.name, text, each.path, (), *whole))
    return rows


def _import_rows(diagram: Diagram, process: str, flows: Sequence[HandleFlow]) -> Iterator[DrawnRow]:
    marks = {span.origin: span.chunk for range_ in diagram.ranges for span in range_.pieces if span.origin}
    marks |= {resource.origin: resource.mark for resource in diagram.things if resource.origin}
    for name, group in by_key((flow.name, flow) for flow in flows).items():
        first = group[0]
        source = f"{first.source}/" if first.outside else f"{first.source.partition('.')[0]}."
        origin = f"{source}{first.export}"  # as the spec writes it
        size = _size(sum(flow.count * flow.processes for flow in group), first.bytes_each)
        text = (*size, f"from {origin}", *([first.via] if first.outside else []))
        yield DrawnRow("import", marks.get(origin, ""), name, text, first.path, ("import", process, name))


def part_words(part: Resource) -> str:
    """Size and offset of a part."""
    return f"{notation.multiple(part.count, part.bytes_each)} at {notation.offset(part.offset)}"


def _size(count: int, size: int) -> tuple[str, ...]:
    if size:
        return (notation.multiple(count, size),)
    return (f"{count:,} ×",) if count > 1 else ()


def draw_rows(diagram: Diagram, process: str, wide: float, context: DrawingContext) -> list[Box]:
    """The rows of a process below one another, each with its port at both ends; empty if it has none."""
    rows, most = rows_of(diagram, process, context.flows), context.limits.rows
    shown = rows[:most]
    tag = max([_TAG, *(width(row.tag, markup.SMALL, markup.CAPITALS) + _TAG_GAP for row in shown)])
    boxes = [_draw_row(row, wide, min(tag, _WIDEST_TAG), context) for row in shown]
    if (more := len(rows) - most) > 0:
        boxes.append(Box(wide, 18, text_at(_PADDING, 13, f"… and {more:,} more", "w")))
    return [stacked(boxes, 6)] if boxes else []


def _draw_row(row: DrawnRow, wide: float, tag: float, context: DrawingContext) -> Box:
    left = _PADDING + tag
    content = [text_at(_PADDING, 21.5, fitting(row.tag.upper(), tag, markup.SMALL, markup.CAPITALS), "c w")]
    if row.mark:
        content += badge(context.letter(row.mark), left + 8, 17)
        left += 24
    under = left if wide - left - _PADDING >= _ROOM_FOR_TEXT else _PADDING
    text, height = _draw_text(row, left, under, wide - _PADDING)
    content.append(text)
    if row.parts:
        room = wide - under - _PADDING
        boxes = [_draw_part(part, row, room, context) for part in row.parts[:MOST_PARTS]]
        if (more := len(row.parts) - MOST_PARTS) > 0:
            boxes.append(Box(room, _PART_HEIGHT, text_at(0, 14, f"… and {more:,} more", "w")))
        parts = stacked(boxes, 6)
        content.append(placed(parts, under, height))
        height += parts.height + _PADDING
    tooltip = "\n".join([f"{row.tag} {row.name}", *row.words, *context.position(row.path)])
    frame = rect(0, 0, wide, height, "k", 6)
    return Box(wide, height, markup.hovered(tooltip, [frame, *content]), {row.port: 17.0} if row.port else {})


def _draw_text(row: DrawnRow, left: float, under: float, right: float) -> tuple[str, float]:
    """The name from `left` on, its words beside it or in lines from `under` on, and the height of both."""
    name = fitting(row.name, right - left, NAME)
    start, text = left + width(name, NAME) + 12, text_at(left, 21.5, name, "n")
    beside = markup.packed(row.words, right - start, BODY)
    if len(beside) <= 1 and all(width(line, BODY) <= right - start for line in beside):
        return text + "".join(text_at(start, 21.5, line, "w") for line in beside), _ROW_HEIGHT
    lines = markup.packed(row.words, right - under, BODY)
    below = (text_at(under, 38 + _LINE * index, line, "w") for index, line in enumerate(lines))
    return text + "".join(below), _ROW_HEIGHT + _LINE * len(lines) + 2


def _draw_part(part: Resource, row: DrawnRow, room: float, context: DrawingContext) -> Box:
    words, top = part_words(part), _PART_HEIGHT
    text = text_at(0, 14, fitting(part.name, room, NAME), "n")
    if width(part.name, NAME) + _PART_GAP + width(words, BODY) <= room:
        text += text_at(room, 14, words, "w", anchor="end")
    else:
        text, top = text + text_at(0, 30, fitting(words, room, BODY), "w"), _PART_HEIGHT + 16
    bounds = part.offset, part.offset + part.count * part.bytes_each
    first, last = (room * min(1.0, each / row.size) if row.size else 0.0 for each in bounds)
    start, length = min(first, room - _SHORTEST_PART), max(_SHORTEST_PART, last - first)
    shape = filled([stripe(start, 0, length, _TRACK_HEIGHT)], row.device, context)
    whole, edge = rect(0, 0, room, _TRACK_HEIGHT, "o"), rect(start, 0, length, _TRACK_HEIGHT, "e")
    return Box(room, top + _TRACK_HEIGHT, text + placed(Box(room, _TRACK_HEIGHT, whole + shape + edge), 0, top))
