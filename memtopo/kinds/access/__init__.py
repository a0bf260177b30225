"""Access of devices to ranges and to parts of ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Annotated, NamedTuple

from pydantic import Discriminator, Field, Tag

from memtopo.common.units import Size, by_key, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Access, Location
from memtopo.geometry.access import LONGEST_GRANT, Granted, from_offset, granted
from memtopo.geometry.groups import RangeGroup
from memtopo.geometry.model import AccessSpan, Geometry, Part, Placement, mapped_once
from memtopo.kinds.access.grants import Extent, peer_access, resolve_grants
from memtopo.kinds.kind import Keys, Kind, MakeStep, ResolutionStage, Scope, StepDifference, Steps, Words
from memtopo.kinds.resolution import Resolution, attempt, instances, together, whole_granules
from memtopo.language.entries import Entry
from memtopo.language.fields import Amount, Grants, PositiveAmount
from memtopo.machine import Machine

_Span = tuple[int, int, str]
"""First index and end of instances of a range, and the key of the section that names them."""


def _shape(value: object) -> str | None:
    if isinstance(value, dict):
        return "<grant>"
    return "<parts>" if isinstance(value, list) else None


class AccessPart(Entry):
    """Access to a part of a range, which must cover whole mappings (fact 20)."""

    offset: Amount = Field(default=Size(0), description="Offset of the part in the range.")
    size: PositiveAmount = Field(description="Bytes of the part, which must cover whole mappings.")
    grant: Grants = Field(description="Devices with their access: r, rw or none.")


Shaped = Annotated[
    Annotated[Grants, Tag("<grant>")] | Annotated[list[AccessPart], Tag("<parts>")],
    Discriminator(_shape, custom_error_type="access", custom_error_message="access"),
]


class AccessKind(Kind):
    """Section `access`."""

    section = "access"
    description = "Devices with access to a range: kv: {gpu0: rw, gpu1: r}. No other access is granted."
    words = Words("access", "parts of access", "kv: {gpu0: rw}", "and access can be granted to ranges only")
    entry = Shaped
    keys = Keys.REFERENCES
    stage = ResolutionStage.GRANTED

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        found: dict[str, list[Part]] = {}
        spans: dict[str, list[_Span]] = {}
        for key, entry in scope.spec.section("access").items():
            group = yield from attempt(scope.referenced, key, self, RangeGroup)
            if group is None:
                scope.devices.use(entry if isinstance(entry, dict) else ())
                continue
            parts = yield from _parts(scope, scope.spec.at("access", key), group, entry)
            if not all(parts):
                scope.leave_unresolved("access", group.name)
            if not (complete := [part for part in parts if part]):
                continue
            own, others = (*complete[0].instances, key), spans.setdefault(group.name, [])
            index = bisect_left(others, own[:1])  # they are sorted and disjoint
            near = others[max(0, index - 1) : index + 1]
            if other := next((each for each in near if own[0] < each[1] and each[0] < own[1]), None):
                message = f"access to {group.label(max(own[0], other[0]))!r} is declared twice"
                label = Label("first declared here", scope.spec.at("access", other[2]), "key")
                help = "name each range only once, or declare parts; later parts override earlier ones"
                yield Diagnostic("MT204", message, scope.spec.at("access", key), "key", labels=(label,), help=help)
                scope.leave_unresolved("access", group.name)
                continue
            insort(others, own)
            found.setdefault(group.name, []).extend(complete)
        if (yield from scope.too_many({"access": sum(part.times for parts in found.values() for part in parts)})):
            scope.leave_unresolved("access", *found)
        else:
            scope.parts.update({name: tuple(parts) for name, parts in found.items()})

    def steps(self, geometry: Geometry, machine: Machine) -> Steps:
        from memtopo.kinds.mappings.steps import SetAccess

        return access_steps(geometry, SetAccess, memory=True)

    def changes(self, difference: StepDifference) -> Steps:
        from memtopo.kinds.mappings.steps import access_changes

        return access_changes(difference)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for name, views in views_of_chunks(geometry, granted(geometry)).items():
            if two := unequal_views(sorted(views)):
                more, less = sorted(two, key=lambda view: -view.access)
                yield (
                    f"chunk {name}: {more.location} has {more.access.word} in {more.range} and {less.access.word} in "
                    f"{less.range}; stores through one are visible through the other"
                )


def access_steps(geometry: Geometry, step: MakeStep, *, memory: bool) -> Steps:
    """Steps that grant access to ranges of chunks, which are `memory`, or of other objects; `step` makes each."""
    access_of = granted(geometry)
    for where, placements in geometry.placements.items():
        if placements[0].chunk.memory is memory:
            for span in access_of[where]:
                label = span.range.label(span.instance)
                for low, high in _calls(placements, span):
                    yield step(span.path, label, low, high - low, span.grants)


def split_mappings(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT308 for parts that split a mapping, which the driver refuses (fact 20)."""
    for part, instance, placements in _applied_parts(geometry):
        for bound in (part.offset, part.end):
            index = bisect_right(placements, bound, key=attrgetter("offset")) - 1
            split = placements[index] if index >= 0 else None
            # Mappings past the end of a range are reported by another rule.
            if split and bound < split.end <= part.range.size and (bound - split.offset) % split.chunk.size:
                yield _split(part, instance, bound, split)
                break


def past_the_end(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT309 for parts past the end of their range."""
    for parts in geometry.parts.values():
        for part in parts:
            if part.end > part.range.size:
                group = part.range
                message = f"this part ends at {exact(part.end)} of {group.name!r}, which ends at {exact(group.size)}"
                label = Label(f"{exact(group.size)} declared here", (*group.path, "size"))
                yield Diagnostic("MT309", message, (*part.path, "size"), labels=(label,))


def _parts(
    scope: Scope, path: Path, group: RangeGroup, entry: Grants | list[AccessPart]
) -> Resolution[list[Part | None]]:
    """Parts of the key of `access` at `path`, all of the same ranges; None for each part with an error."""
    span = yield from attempt(instances, str(path[-1]), group, path)
    if span is None:
        return [None]
    if isinstance(entry, dict):
        return [(yield from attempt(_part, scope, path, entry, path, Extent(group, *span, 0, group.size)))]
    parts: list[Part | None] = []
    for index, item in enumerate(entry):
        where, offset = (*path, index), item.offset.bytes(group.granule)
        extent = Extent(group, *span, offset, offset + item.size.bytes(group.granule))
        parts.append((yield from attempt(_part, scope, where, item.grant, (*where, "grant"), extent)))
    return parts


def _part(scope: Scope, path: Path, entry: Grants, granted_at: Path, extent: Extent) -> Part:
    (grants, keys), _ = together(
        partial(resolve_grants, scope, entry, granted_at, extent), partial(_require_whole_granules, extent, path)
    )
    group, first, stop, offset, end = extent
    return Part(group, (first, stop), offset, end - offset, grants, keys, path)


def _require_whole_granules(extent: Extent, path: Path) -> None:
    unit = extent.range.granule
    note = f"access can be granted only to whole chunks, whose granularity is {exact(unit)}"
    for field, amount in (("offset", extent.offset), ("size", extent.end - extent.offset)):
        whole_granules("MT303", f"range {extent.range.name!r}", amount, unit, (*path, field), note)


def _calls(placements: Sequence[Placement], span: AccessSpan) -> Iterator[tuple[int, int]]:
    """Divide a span into pieces of at most `LONGEST_GRANT` whole mappings."""
    start, end, mapped = span.offset, span.end, 0
    for placement in from_offset(placements, span.offset):
        if placement.offset >= end:
            break
        at, stop, size = max(placement.offset, span.offset), min(placement.end, end), placement.chunk.size
        while at < stop:
            count = min(LONGEST_GRANT - mapped, (stop - at) // size)
            at, mapped = at + count * size, mapped + count
            if mapped == LONGEST_GRANT:
                yield start, at
                start, mapped = at, 0
    if start < end:
        yield start, end


def _applied_parts(geometry: Geometry) -> Iterator[tuple[Part, int, Sequence[Placement]]]:
    """Parts that are less than a whole range, with the placements of each range that they are of."""
    for name, parts in geometry.parts.items():
        for part in parts:
            if part.offset or part.end != part.range.size:
                for instance in range(*part.instances):
                    yield part, instance, geometry.placements.get((name, instance), ())


def _split(part: Part, instance: int, bound: int, split: Placement) -> Diagnostic:
    size = split.chunk.size
    index = (bound - split.offset) // size
    low = split.offset + index * size
    chunk = split.chunk.label(split.index(index))
    message = f"this part would split {chunk!r} at {exact(bound)} of {part.range.label(instance)!r}"
    label = Label(f"{chunk!r} is mapped from {exact(low)} to {exact(low + size)}", split.path)
    field = "offset" if bound == part.offset else "size"
    base = 0 if field == "offset" else part.offset
    near = [exact(amount - base) for amount in (low, low + size) if amount > base or field == "offset"]
    help = f"write 'offset: {near[0]}' or 'offset: {near[-1]}'" if field == "offset" else f"write 'size: {near[-1]}'"
    notes = ("the driver grants access to whole mappings only",)
    return Diagnostic("MT308", message, (*part.path, field), labels=(label,), notes=notes, help=help)


class ChunkView(NamedTuple):
    """Chunks of one group as a location accesses them through one range."""

    first: int
    stop: int
    location: Location
    access: Access
    range: str


def views_of_chunks(geometry: Geometry, access_of: Granted) -> dict[str, list[ChunkView]]:
    """Views of the chunks of groups of which some chunk is mapped twice."""
    placed = by_key((placement.chunk.name, placement) for each in geometry.placements.values() for placement in each)
    return {
        name: [view for placement in several for view in _views_of(access_of[placement.where], placement)]
        for name, several in placed.items()
        if not mapped_once(several)
    }


def _views_of(access_spans: Sequence[AccessSpan], placement: Placement) -> Iterator[ChunkView]:
    start = bisect_right(access_spans, placement.offset, key=lambda span: span.end)
    for index in range(start, len(access_spans)):
        span = access_spans[index]
        if span.offset >= placement.end:
            return
        low, high = max(span.offset, placement.offset), min(span.end, placement.end)
        size, label = placement.chunk.size, placement.range.label(placement.instance)
        first, stop = (low - placement.offset) // size, (high - placement.offset) // size
        for (begin, end), (location, access) in product(placement.spans_between(first, stop), span.grants):
            yield ChunkView(begin, end, location, access, label)


def unequal_views(views: list[ChunkView]) -> tuple[ChunkView, ChunkView] | None:
    """Two views of one chunk by one location in different ranges with different access, or None."""
    latest: dict[tuple[Location, Access], ChunkView] = {}
    for view in views:
        for access in (Access.R, Access.RW):
            other = latest.get((view.location, access))
            if other and access != view.access and view.first < other.stop and other.range != view.range:
                return other, view
        known = latest.get((view.location, view.access))
        if known is None or view.stop > known.stop:
            latest[view.location, view.access] = view
    return None


ACCESS = AccessKind(rules=(split_mappings, past_the_end, peer_access))
