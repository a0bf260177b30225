"""Placements of map entries: one after another, or the same entries in each of several ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.model import Placement, Slice
from memtopo.kinds.resolution import Refused, Resolution, attempt, instances, whole_granules


class Run(NamedTuple):
    """Mappings of one entry: `number` of them, `stride` bytes apart, from `offset` on."""

    slice: Slice
    chunk: ChunkGroup
    offset: int
    number: int
    stride: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the last chunk."""
        return self.offset + (self.number - 1) * self.stride + self.chunk.size

    def placements(self, group: RangeGroup, first: int, stop: int) -> Iterator[Placement]:
        """Placements in the ranges from index `first` to before `stop`, of which each has as many."""
        for nth, instance in enumerate(range(first, stop)):
            index, step = self._indices(nth, stop - first)
            if self.stride == self.chunk.size:
                yield Placement(group, instance, self.offset, self.chunk, index, self.number, self.slice.path, step)
                continue
            for each in range(self.number):
                offset = self.offset + each * self.stride
                yield Placement(group, instance, offset, self.chunk, index + each * step, 1, self.slice.path)

    def _indices(self, nth: int, ranges: int) -> tuple[int, int]:
        """Index of the first chunk in the n-th range, and the distance to that of the next mapping."""
        first, each = self.slice.first, self.slice.each
        if each is None or each == "all":
            return first, 1
        if self.slice.repeated:
            return first, 0
        return (first + nth, ranges) if self.slice.in_turn else (first + nth * self.number, 1)


class Content(Struct, frozen=True):
    """Mappings of one key of `map`, in the ranges from index `first` to before `stop`.

    The ranges are filled one after another, so that offsets are those of the first one; or, if they are `uniform`, each
    has all runs. `complete` is false if entries are left out, which have errors or follow an unknown chunk.
    """

    range: RangeGroup
    first: int
    stop: int
    runs: Sequence[Run]
    uniform: bool
    complete: bool

    @property
    def number(self) -> int:
        """Number of mappings."""
        return sum(run.number for run in self.runs) * (self.stop - self.first if self.uniform else 1)

    def placements(self) -> Iterator[Placement]:
        """Placements in all ranges."""
        if not self.uniform:
            return _one_after_another(self)
        return chain.from_iterable(run.placements(self.range, self.first, self.stop) for run in self.runs)


_BEGINS = "an entry begins at the end of the previous one, and its offset must be a multiple of its granularity"


def resolve_content(path: Path, group: RangeGroup, slices: Sequence[Slice]) -> Resolution[Content]:
    """Mappings of the key of `map` at `path`. The entries after an unknown chunk are left out."""
    span = yield from attempt(instances, str(path[-1]), group, path)
    uniform = any(each.each is not None or each.stride is not None or each.in_turn for each in slices)
    wrong = list(_contradictory(slices, span[1] - span[0])) if span and uniform else []
    yield from wrong
    if span is None or wrong:
        return Content(group, 0, 0, (), uniform=uniform, complete=False)
    runs: list[Run] = []
    cursor: int | None = 0
    for each in slices:
        chunk = each.group
        if each.offset is not None:
            unit, where = chunk.granule if chunk else group.granule, (*each.path, "offset")
            cursor = yield from attempt(_multiple, each.offset, unit, group, where)
        elif chunk is not None and cursor is not None and cursor % chunk.granule:
            unit = chunk.granule
            begin = f"begin at {exact(cursor)}, which is not a multiple of {exact(unit)}"
            message = f"range {group.name!r}: {chunk.name!r} would {begin}"
            help = f"write '{{chunk: {each.reference}, offset: {exact(cursor + unit - cursor % unit)}}}'"
            yield Diagnostic("MT303", message, each.path, notes=(_BEGINS,), help=help)
            cursor = None
        if chunk is None or cursor is None:
            cursor = None
            continue
        run: Run | None = Run(each, chunk, cursor, each.stop - each.first, chunk.size)
        if uniform and run:
            run = yield from attempt(_counted, run, group, span[1] - span[0])
        if run is not None:
            runs.append(run)
        cursor = run.end if run else None
    return Content(group, *span, runs, uniform=uniform, complete=len(runs) == len(slices))


def _one_after_another(content: Content) -> Iterator[Placement]:
    """Place chunks into consecutive reservations. Chunks that do not fit run past the end, which a rule reports."""
    group, room, last = content.range, content.range.size, content.stop - 1
    for each, chunk, start, number, size in content.runs:
        if content.first == last and number and start + number * size <= room:
            yield Placement(group, last, start, chunk, each.first, number, each.path)
            continue
        cursor, first, left = content.first * room + start, each.first, number
        while left:
            instance = min(cursor // room, last)
            offset = cursor - instance * room
            fits = min(left, (room - offset) // size) if offset < room else 0
            count = fits or left
            yield Placement(group, instance, offset, chunk, first, count, each.path)
            first, left, cursor = first + count, left - count, cursor + count * size


def _counted(run: Run, group: RangeGroup, ranges: int) -> Run:
    """The run with its stride and with the mappings that each range has. Raises `Refused` if they do not fit."""
    each, size, stride = run.slice, run.chunk.size, _stride(run, group)
    room = group.size - run.offset
    fits = (room - size) // stride + 1 if room >= size else 0
    count = each.each if isinstance(each.each, int) else each.number
    if each.each == "fill":
        count = fits
    if count > fits or not fits:
        raise Refused(_beyond(run._replace(number=max(count, 1), stride=stride), group, fits))
    if each.each not in (None, "all") and not each.repeated and count * ranges > each.number:
        chunk, needed, name = run.chunk, count * ranges, str(each.reference)
        message = f"{count:,} in each of {ranges:,} ranges are {needed:,} chunks, but {name!r} has {each.number:,}"
        label = Label("declared here", (*chunk.path, "count") if chunk.counted and not chunk.origin else chunk.path)
        fewer = f"write 'each: {each.number // ranges}'" if each.number >= ranges else ""
        more = f"increase the count of {name!r} to {needed}" if each.reference.first is None else ""
        help = ", or ".join(part for part in (fewer, more) if part) or None
        raise Refused(Diagnostic("MT311", message, (*each.path, "each"), labels=(label,), help=help))
    return run._replace(number=count, stride=stride)


def _multiple(written: Size, unit: int, group: RangeGroup, path: Path) -> int:
    """Bytes of an offset or stride. Raises `Refused` with MT303 if not a multiple of the chunks' granularity."""
    note = f"the offset of a chunk must be a multiple of its granularity, {exact(unit)}"
    return whole_granules("MT303", f"range {group.name!r}", written.bytes(group.granule), unit, path, note)


def _stride(run: Run, group: RangeGroup) -> int:
    """Bytes from one mapping of a run to the next. Raises `Refused` with MT304 if they would overlap."""
    written, size, path = run.slice.stride, run.chunk.size, (*run.slice.path, "stride")
    stride = _multiple(written, run.chunk.granule, group, path) if written else size
    if stride < size:
        less = f"a stride of {exact(stride)} is less than the {exact(size)} of {run.chunk.name!r}, which would overlap"
        raise Refused(Diagnostic("MT304", less, path, help=f"write 'stride: {exact(size)}' or more"))
    return stride


def _beyond(run: Run, group: RangeGroup, fits: int) -> Diagnostic:
    """Return MT305 for an entry of which only the first mappings fit into each range."""
    each, size = run.slice, exact(group.size)
    path = (*each.path, "stride") if each.stride else each.path
    if each.each is not None:
        path = (*each.path, "each")
    number = f"{run.number:,} mappings of {str(each.reference)!r}" if run.number > 1 else repr(str(each.reference))
    message = f"{number} would end at {exact(run.end)} of {group.name!r}, which ends at {size}"
    help = f"increase the size of {group.name!r} to {exact(run.end)}"
    if fits:
        help += f", or write 'each: {fits}'" if each.each is not None else ", or map less"
    labels = (Label(f"{size} declared here", (*group.path, "size")),)
    return Diagnostic("MT305", message, path, labels=labels, help=help)


def _contradictory(slices: Sequence[Slice], ranges: int) -> Iterator[Diagnostic]:
    """Yield MT312 for keys of entries that do not go together."""
    counted = next((each for each in slices if each.each is not None), None)
    for each in slices:
        if each.in_turn and (each.each in (None, "all") or each.repeated):
            yield _no_order(each)
        elif ranges > 1 and each.each is None:
            yield _without_each(each, counted)


def _no_order(each: Slice) -> Diagnostic:
    path, name = (*each.path, "order"), str(each.reference)
    if each.each is None:
        message = f"'order' is that of the ranges with 'each', which the entry of {name!r} does not have"
        return Diagnostic("MT312", message, path, help="add 'each', the number of chunks in each range")
    why = "is one chunk" if each.repeated else "is mapped as a whole into each range"
    return Diagnostic("MT312", f"{name!r} {why}, so there is no order", path, help="omit 'order'")


def _without_each(each: Slice, counted: Slice | None) -> Diagnostic:
    name = str(each.reference)
    help = f"write '{{chunk: {name}, each: N}}' for N chunks in each range, or 'each: all'"
    if counted is None:
        message = f"a stride in several ranges requires 'each', the number of mappings of {name!r} in each of them"
        return Diagnostic("MT312", message, (*each.path, "stride") if each.stride else each.path, help=help)
    message = f"{name!r} has no 'each', but another entry of the same ranges has one"
    label = Label("mapped into each range", (*counted.path, "each"))
    return Diagnostic("MT312", message, each.path, labels=(label,), help=help)
