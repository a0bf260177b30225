"""Elastic ranges: a program maps chunks in them while the layout exists, and a zero chunk may back the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.geometry.access import AccessParts
from memtopo.geometry.groups import Backing, ChunkGroup, RangeGroup
from memtopo.geometry.model import Geometry, Part, Placement
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.language.entries import Entry
from memtopo.language.fields import OwnName, one_or_more
from memtopo.machine import Machine


class Elastic(Entry):
    """Chunks that a program may map in a range, and the chunk behind everything that is not mapped."""

    chunks: Annotated[list[OwnName], BeforeValidator(one_or_more, json_schema_input_type=OwnName | list[OwnName])] = (
        Field(default=[], description="Elastic chunks that may be mapped in the range; by default all of the spec.")
    )
    zero: OwnName | None = Field(
        default=None, description="Chunk of zeros that is mapped, read-only, wherever nothing else is."
    )


def _elastic(value: object) -> object:
    if not isinstance(value, str) or not value:
        return value
    if value not in ("true", "false"):
        raise InvalidValue("MT107", f"{value!r} is not a boolean", help="write true, or {zero: NAME}")
    return {} if value == "true" else None


Elasticity = Annotated[Elastic | None, BeforeValidator(_elastic, json_schema_input_type=bool | Elastic)]


def resolve_backing(scope: Scope, path: Path, entry: Elastic) -> Resolution[tuple[Backing, bool]]:
    """Chunks of the `elastic` of a range at `path`, and true if they are complete."""
    groups = scope.of(ChunkGroup)
    found = [group for group in groups.values() if group.growing] if not entry.chunks else []
    complete = True
    for index, name in enumerate(entry.chunks):
        group = yield from _growing(scope, name, (*path, "chunks", index))
        found += [group] if group else []
        complete &= group is not None
    zero = None
    if entry.zero is not None:
        zero = yield from _zero(scope, entry.zero, (*path, "zero"))
        complete &= zero is not None
    return Backing(tuple(found), zero), complete


def granule_of(backing: Backing | None) -> int:
    """Largest granularity of the chunks that may be mapped in an elastic range; 0 if there are none."""
    return max((group.granule for group in backing.every), default=0) if backing else 0


def zero_chunks(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT805 for zero chunks that do not fill exactly what they are to back."""
    elastic = {name: group for name, group in geometry.of(RangeGroup).items() if group.elastic}
    parts = AccessParts({name: geometry.parts.get(name, ()) for name in elastic})
    for group in elastic.values():
        zero = group.elastic.zero if group.elastic else None
        if group.elastic is None or zero is None:
            continue
        for chunk in group.elastic.chunks:
            if chunk.size % zero.size:
                yield _misfit(group, zero, f"a chunk of {chunk.name!r} has {exact(chunk.size)}", (*chunk.path, "size"))
        if group.size % zero.size:
            yield _misfit(group, zero, f"{group.name!r} has {exact(group.size)}", (*group.path, "size"))
        for instance in range(group.count):
            placed = geometry.placements.get((group.name, instance), ())
            yield from _bounds(group, zero, placed, parts.of(group.name, instance))


def _bounds(
    group: RangeGroup, zero: ChunkGroup, placed: Sequence[Placement], parts: Sequence[Part]
) -> Iterator[Diagnostic]:
    """Yield MT805 for fixed mappings and parts of access that begin or end within a zero chunk."""
    bounds = [("fixed chunks", each.offset, each.end, each.path) for each in placed]
    bounds += [("a part of access", each.offset, each.end, each.path) for each in parts]
    for what, start, end, path in bounds:
        at = next((at for at in (start, end) if at % zero.size and at != group.size), None)
        if at is not None:
            yield _misfit(group, zero, f"{what} would split one at {exact(at)}", path)


def _misfit(group: RangeGroup, zero: ChunkGroup, why: str, path: Path) -> Diagnostic:
    message = f"range {group.name!r}: zero chunks of {exact(zero.size)} cannot back it, since {why}"
    label = Label("this has to be a multiple of the zero chunk", path)
    help = f"make it a multiple of {exact(zero.size)}, or the zero chunk smaller"
    return Diagnostic("MT805", message, (*group.path, "elastic", "zero"), labels=(label,), help=help)


def _growing(scope: Scope, name: str, path: Path) -> Resolution[ChunkGroup | None]:
    group = yield from _chunk(scope, name, path)
    if group is None or group.growing:
        return group
    message = f"{name!r} is not elastic: only chunks whose count has a min and a max can be mapped by a program"
    label = Label("declared here", group.path, "key")
    yield Diagnostic("MT804", message, path, labels=(label,), help="write 'count: {min: 0, max: N}' there")
    return None


def _zero(scope: Scope, name: str, path: Path) -> Resolution[ChunkGroup | None]:
    group = yield from _chunk(scope, name, path)
    if group is None or (yield from requires_gpu("a zero chunk", group.locations, path)):
        return None
    if not group.counted and group.origin is None:
        return group
    what = "is imported" if group.origin else "has a count"
    label = Label("declared here", group.path, "key")
    message = f"{name!r} {what}, and a zero chunk is a single one that this process creates and fills with zeros"
    yield Diagnostic("MT805", message, path, labels=(label,), help="declare a chunk without 'count' for it")
    return None


def _chunk(scope: Scope, name: str, path: Path) -> Resolution[ChunkGroup | None]:
    group = scope.of(ChunkGroup).get(name)
    if group is None and not any(scope.spec.may_have(section, name) for section in ("chunks", "imports")):
        yield scope.errors.undeclared("chunk", name, path, scope.spec.names("chunks"))
    return group
