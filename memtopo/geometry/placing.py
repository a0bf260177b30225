"""Map entries become placements: whole chunks at offsets of reservations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from memtopo.common.units import exact
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import At, Diagnostic, Path
from memtopo.geometry.groups import BufferGroup, ChunkGroup, EventGroup, RangeGroup
from memtopo.geometry.model import Placement
from memtopo.geometry.sizing import misfit
from memtopo.geometry.unmapped import explained
from memtopo.spec import MapEntry, Reference, Spec, parse_reference


class Slice(NamedTuple):
    """Chunks of one run, `first` up to `stop`, as one map entry names them; None where they cannot be known."""

    run: ChunkGroup | None
    first: int
    stop: int
    entry: MapEntry
    path: Path


def slices(
    spec: Spec, chunks: Mapping[str, ChunkGroup], others: Mapping[str, str], faults: list[Diagnostic]
) -> dict[str, list[Slice]]:
    """Each map entry with the chunks that it names, by the map's keys.

    `others` says what else goes by a name, which cannot be mapped: "a buffer".
    """
    return {
        key: [
            _slice(entry, spec.at("map", key, index), chunks, others, spec, faults)
            for index, entry in enumerate(entries)
        ]
        for key, entries in spec.map.items()
    }


def indices(
    reference: Reference,
    run: ChunkGroup | RangeGroup | BufferGroup | EventGroup,
    path: Path,
    faults: list[Diagnostic],
    *,
    at: At = "value",
) -> tuple[int, int] | None:
    """First and stop of a reference within a run; None, and a diagnostic, where it reaches past the count."""
    if reference.first is None or reference.stop is None:
        return 0, run.count
    if run.counted and reference.stop <= run.count:
        return reference.first, reference.stop
    told = f"'{reference}' is past the end: {run.name!r} has {run.count}, {run.label(0)} to {run.label(run.count - 1)}"
    if not run.counted:
        told = f"'{reference}': {run.name!r} is not counted, so it has no {reference.first}"
    faults.append(Diagnostic("MT202", told, path, at, help=None if run.counted else f"write {run.name}"))
    return None


def place(path: Path, run: RangeGroup, parts: list[Slice], faults: list[Diagnostic]) -> tuple[list[Placement], bool]:
    """The placements of one key of `map`, the last of `path`, and whether they are all.

    An unknown chunk leaves what follows unknown.
    """
    span = indices(parse_reference(str(path[-1])), run, path, faults, at="key")
    if span is None:
        return [], False
    placed: list[Placement] = []
    cursor: int | None = span[0] * run.size
    sure = True
    for part in parts:
        if part.entry.offset is not None:
            cursor = _offset(part, run, span[0] * run.size, faults)
        elif part.run is not None and cursor is not None and cursor % part.run.granule:
            faults.append(_adrift(part, part.run, run, cursor - span[0] * run.size))
            cursor = None
        if part.run is None or cursor is None:
            cursor, sure = None, False
            continue
        placed += _lay(run, span[1], part.run, part, cursor)
        cursor += (part.stop - part.first) * part.run.size
    return placed, sure


def _slice(
    entry: MapEntry,
    path: Path,
    chunks: Mapping[str, ChunkGroup],
    others: Mapping[str, str],
    spec: Spec,
    faults: list[Diagnostic],
) -> Slice:
    name = entry.chunk.name
    run = chunks.get(name)
    if run is None:
        if other := others.get(name):
            told = f"{name!r} is {other}, and only chunks are mapped"
            help = "share a chunk via fd instead" if name in spec.imports else "declare it under 'chunks'"
            faults.append(Diagnostic("MT201", told, (*path, "chunk"), help=help))
        elif not (
            spec.may_have("chunks", name)
            or spec.may_have("imports", name)
            or explained(spec, name, "map", (*path, "chunk"), faults)
        ):
            messages.undeclared(faults, "chunk", name, (*path, "chunk"), [*spec.chunks, *spec.imports])
        return Slice(None, 0, 0, entry, path)
    span = indices(entry.chunk, run, (*path, "chunk"), faults)
    return Slice(run, *span, entry, path) if span else Slice(None, 0, 0, entry, path)


def _offset(part: Slice, run: RangeGroup, base: int, faults: list[Diagnostic]) -> int | None:
    assert part.entry.offset is not None
    offset = part.entry.offset.bytes(run.granule)
    unit = part.run.granule if part.run else run.granule
    if offset % unit == 0:
        return base + offset
    note = f"a chunk starts at a multiple of its granularity, {exact(unit)}"
    faults.append(misfit("MT303", f"range {run.name!r}", offset, unit, (*part.path, "offset"), note))
    return None


def _adrift(part: Slice, chunk: ChunkGroup, run: RangeGroup, offset: int) -> Diagnostic:
    """An entry that would begin where the one before it ended, which is no multiple of its own granule."""
    unit = chunk.granule
    told = f"range {run.name!r}: {chunk.name!r} would begin at {exact(offset)}, which is no multiple of {exact(unit)}"
    note = "an entry begins where the one before it ended, and a chunk at a multiple of its granularity"
    help = f"write '{{chunk: {part.entry.chunk}, offset: {exact(offset + unit - offset % unit)}}}'"
    return Diagnostic("MT303", told, part.path, notes=(note,), help=help)


def _lay(run: RangeGroup, stop: int, chunk: ChunkGroup, part: Slice, cursor: int) -> Iterator[Placement]:
    """Fill one reservation after another. What does not fit stays past the end, where a rule finds it."""
    first, left = part.first, part.stop - part.first
    while left:
        instance = min(cursor // run.size, stop - 1)
        offset = cursor - instance * run.size
        fits = min(left, (run.size - offset) // chunk.size) if offset < run.size else 0
        count = fits or left
        yield Placement(run, instance, offset, chunk, first, count, part.path)
        first, left, cursor = first + count, left - count, cursor + count * chunk.size
