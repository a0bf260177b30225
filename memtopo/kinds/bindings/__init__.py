"""Bindings: the memory of each GPU behind a multicast object, which processes of its team bind (fact 87)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from msgspec import Struct
from pydantic import ConfigDict, Field, model_validator

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.types import HOST, Location, LocationKind, gpu
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.geometry.model import Geometry
from memtopo.kinds.access import access_steps
from memtopo.kinds.kind import Items, Keys, Kind, ResolutionStage, Scope, StepDifference, Steps, Words
from memtopo.kinds.mappings import mapping_steps
from memtopo.kinds.multicast import MulticastGroup
from memtopo.kinds.resolution import Refused, attempt, indices, refuse_growing
from memtopo.language.entries import Entry
from memtopo.language.fields import Amount, ChunkReference, entries_or_chunks
from memtopo.language.names import Reference, parse_reference
from memtopo.machine import Machine


class BindEntry(Entry):
    """Memory bound to a multicast object: chunks, or the chunks in a range, by their addresses there.

    It follows the memory of the same GPU that the entries before it bind, or begins at `offset` on every GPU.
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["chunk"]}, {"required": ["range"]}]})

    chunk: ChunkReference | None = Field(default=None, description="Chunks to bind: part, part.3, or part.0:4.")
    range: ChunkReference | None = Field(default=None, description="Range whose chunks are bound by their addresses.")
    offset: Amount | None = Field(
        default=None, description="Offset in the object; by default the end of the previous binding of the GPU."
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if (self.chunk is None) == (self.range is None):
            message = "a binding names a chunk or a range"
            raise InvalidValue("MT102" if self.chunk is None else "MT103", message, help="write '{chunk: NAME}'")
        return self


class Binding(Struct, frozen=True):
    """Whole chunk bound at an offset of an object, in bytes; by its address in a range if it has a `range`."""

    device: int
    offset: int
    chunk: ChunkGroup
    nth: int
    path: Path
    range: str = ""
    at: int = 0

    @property
    def end(self) -> int:
        """Offset of the first byte after the chunk."""
        return self.offset + self.chunk.size

    @property
    def label(self) -> str:
        """Label of the chunk."""
        return self.chunk.label(self.nth)


class BindGroup(Group, frozen=True):
    """Everything that a process binds to one object; `size` are the bytes of the GPU with the most."""

    noun = "binding"
    bound_to_context = False

    object: MulticastGroup
    bindings: tuple[Binding, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """Ordinals of the GPUs that the process adds to the team."""
        return tuple(dict.fromkeys(each.device for each in self.bindings))

    @property
    def locations(self) -> tuple[Location, ...]:
        """GPUs that the process adds to the team."""
        return tuple(map(gpu, self.devices))

    def location_of(self, index: int) -> Location:
        return self.locations[index]

    def details(self) -> Iterator[str]:
        """Names of the entries whose memory is bound."""
        yield f"bound: {', '.join(dict.fromkeys(each.chunk.name for each in self.bindings))}"


class Bindings(Kind):
    """Section `bind`."""

    section = "bind"
    description = "Memory that is bound to a multicast object, one chunk after another on each GPU: team: [part]."
    words = Words(
        "binding", "bindings", "team: [part]", "and memory can be bound to multicast objects only", drawn="binding"
    )
    entry = entries_or_chunks(BindEntry)
    group = BindGroup
    keys = Keys.REFERENCES
    stage = ResolutionStage.MAPPED

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        number = 0
        for key, entries in scope.spec.section("bind").items():
            group = yield from attempt(self.resolve_entry, scope, entries, scope.spec.at("bind", key))
            number += len(group.bindings) if group else 0
            yield from scope.add(self, parse_reference(key).name, group)
        if (yield from scope.too_many({"bind": number})):
            scope.leave_out(self)

    def resolve_entry(self, scope: Scope, entry: list[BindEntry], path: Path) -> BindGroup:
        target = _target(scope, path)
        indices(parse_reference(str(path[-1])), target, path, at="key")
        ends: dict[int, int] = {}
        found: list[Binding] = []
        for number, each in enumerate(entry):
            where = (*path, number)
            memory = _chunks(scope, each.chunk, where) if each.chunk else _mapped(scope, each.range, where)
            start = each.offset.bytes(target.granule) if each.offset else None
            own: dict[int, int] = {}  # the end on each GPU; by default memory begins where the GPU has none bound yet
            for chunk, nth, label, at in memory:
                device = chunk.location_of(nth).processor
                offset = own.get(device, ends.get(device, 0) if start is None else start)
                own[device] = ends[device] = offset + chunk.size
                found.append(Binding(device, offset, chunk, nth, where, label, at))
        return BindGroup(target.name, path, target, tuple(found), size=max(ends.values(), default=0))

    def steps(self, geometry: Geometry, machine: Machine) -> Items:
        if not geometry.of(BindGroup) and not geometry.of(MulticastGroup):
            return
        from memtopo.kinds.multicast.steps import AddDevice, BindAddress, BindChunk, MapMulticast, SetMulticastAccess

        for group in geometry.of(BindGroup).values():
            name = group.name
            for device in group.devices:
                yield AddDevice(group.path, name, device)
            for each in group.bindings:
                place = name, each.device, each.offset, each.label, each.chunk.size
                if each.range:
                    yield BindAddress(each.path, *place, each.range, each.at)
                else:
                    yield BindChunk(each.path, *place)
        yield from mapping_steps(geometry, machine, MapMulticast, memory=False)
        yield from access_steps(geometry, SetMulticastAccess, memory=False)

    def changes(self, difference: StepDifference) -> Steps:
        from memtopo.kinds.mappings.steps import access_changes
        from memtopo.kinds.multicast.steps import MapMulticast, SetMulticastAccess

        return access_changes(difference, MapMulticast, SetMulticastAccess)


def _target(scope: Scope, path: Path) -> MulticastGroup:
    """Object that a key names. Raises `Refused` with MT201 if it names something else, or nothing."""
    name = parse_reference(str(path[-1])).name
    if found := scope.of(MulticastGroup).get(name):
        return found
    other = next(
        (kind.words.article for kind in scope.kinds if kind.keys is Keys.UNIQUE and name in scope.of(kind.group)), None
    )
    if other:
        message = f"{name!r} is {other}, {BINDINGS.words.referred}"
        raise Refused(Diagnostic("MT201", message, path, "key", help="declare it under 'multicast'"))
    reported = scope.spec.may_have("multicast", name) or scope.spec.may_have("imports", name)
    known = scope.spec.names("multicast")
    raise scope.errors.undeclared("multicast object", name, path, known, "key", reported=reported)


_BoundMemory = tuple[ChunkGroup, int, str, int]
"""Chunk to bind, as a group and an index, and its place in a range; no range if it is bound by its handle."""


def _chunks(scope: Scope, reference: Reference, where: Path) -> list[_BoundMemory]:
    path = (*where, "chunk")
    group = scope.named(ChunkGroup, reference.name, path, "chunks", "imports")
    refuse_growing(group, "what is bound stays", path)
    return [(group, index, "", 0) for index in range(*indices(reference, group, path))]


def _mapped(scope: Scope, reference: Reference | None, where: Path) -> list[_BoundMemory]:
    assert reference
    path = (*where, "range")
    group = scope.named(RangeGroup, reference.name, path, "ranges")
    span = indices(reference, group, path)
    if scope.has_unresolved("map"):
        raise Refused
    placed = (each for instance in range(*span) for each in scope.placements.get((group.name, instance), ()))
    found = [
        (each.chunk, each.index(nth), group.label(each.instance), each.offset + nth * each.chunk.size)
        for each in placed
        for nth in range(each.count)
    ]
    if not found:
        message = f"nothing is mapped in range {str(reference)!r}, so there is no memory to bind"
        raise Refused(Diagnostic("MT720", message, path, labels=(Label("declared here", group.path, "key"),)))
    return found


def bound_memory(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT720 for memory that the driver cannot bind, and MT719 for that of a GPU outside of the team."""
    for group in geometry.of(BindGroup).values():
        wrong = {each.path: diagnostic for each in reversed(group.bindings) if (diagnostic := _unbindable(group, each))}
        yield from reversed(wrong.values())


def _unbindable(group: BindGroup, bound: Binding) -> Diagnostic | None:
    chunk, target = bound.chunk, group.object
    label = Label("declared here", chunk.path, "key")
    what, whole = f"{bound.label!r}", f"multicast {target.name!r}"
    if not chunk.memory or chunk.origin:
        message = f"{what} cannot be bound to {whole}: it is not memory that this process creates"
        return Diagnostic("MT720", message, bound.path, labels=(label,), help="bind it in the process that creates it")
    if bound.device == HOST:
        message = f"{what} is host memory, but multicast works only between GPUs"
        return Diagnostic("MT720", message, bound.path, labels=(label,))
    if gpu(bound.device) not in target.devices:
        message = f"{what} is on gpu{bound.device}, which is not in the team of {whole}"
        labels = (Label("its team", (*target.path, "devices")), label) if not target.origin else (label,)
        return Diagnostic("MT719", message, bound.path, labels=labels)
    if (target.origin or target.handles) and not chunk.handles:
        message = f"{what} has no handle type, but {whole} has one"
        note = "to an object that can be exported, or was imported, only shareable memory is bound (fact 87)"
        help = f"declare {chunk.name!r} with 'handles: fd'"
        return Diagnostic("MT720", message, bound.path, labels=(label,), notes=(note,), help=help)
    return None


def bound_places(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT720 for bindings past the end of their object, unaligned ones, and two of a GPU that overlap."""
    for group in geometry.of(BindGroup).values():
        latest: dict[int, Binding] = {}
        for each in sorted(group.bindings, key=lambda each: each.offset):
            before = latest.get(each.device)
            if wrong := _misplaced(group, each, before):
                yield wrong
                break
            latest[each.device] = each


def _misplaced(group: BindGroup, each: Binding, before: Binding | None) -> Diagnostic | None:
    target = group.object
    where = f"{each.label!r} would be bound from {exact(each.offset)} to {exact(each.end)} of {target.name!r}"
    if each.end > target.size:
        label = Label(f"{exact(target.size)} declared here", target.path, "key")
        help = f"increase its size to {exact(each.end)}, or bind less"
        return Diagnostic("MT720", f"{where}, which ends there before", each.path, labels=(label,), help=help)
    if each.offset % target.granule or each.chunk.size % target.granule:
        note = f"offsets and sizes of bound memory must be multiples of {exact(target.granule)}"
        return Diagnostic("MT720", f"{where}, which is unaligned", each.path, notes=(note,))
    if before and before.end > each.offset:
        label = Label(f"{before.label!r} is bound up to {exact(before.end)} here", before.path)
        return Diagnostic("MT720", f"{where}, over other memory of gpu{each.device}", each.path, labels=(label,))
    return None


def accessing_gpus(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT719 for access to a multicast address by a GPU outside of the team."""
    for (name, instance), placements in geometry.placements.items():
        for target in (each.chunk for each in placements if isinstance(each.chunk, MulticastGroup)):
            for part in geometry.parts.get(name, ()):
                if not part.instances[0] <= instance < part.instances[1]:
                    continue
                for (location, access), key in zip(part.grants, part.keys, strict=True):
                    if access and location.kind is LocationKind.GPU and location not in target.devices:
                        message = f"{location} is not in the team of multicast {target.name!r}, which is mapped here"
                        yield Diagnostic("MT719", message, key, "key")


def mixed_ranges(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT312 for ranges of multicast objects and chunks, which are mapped and accessed at different times."""
    for placements in geometry.placements.values():
        first = placements[0]
        if other := next((each for each in placements if each.chunk.memory is not first.chunk.memory), None):
            message = f"{other.chunk.name!r} and {first.chunk.name!r} are mapped into one range"
            label = Label("mapped here", first.path)
            help = "map chunks and multicast objects into separate ranges"
            note = "a multicast object is mapped after all chunks are, and memory of them is bound"
            yield Diagnostic("MT312", message, other.path, labels=(label,), notes=(note,), help=help)


def teams(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT719 for teams that lack a GPU, for which all calls would wait, or that two processes add one to."""
    members = geometry.members
    if any(member.has_unresolved(section) for member in members.values() for section in _TEAM_SECTIONS):
        return
    added: dict[tuple[str, str], dict[int, BindGroup]] = {}
    for label, member in members.items():
        for group in member.of(BindGroup).values():
            origin = group.object.origin
            creator = label, group.object.name
            if origin and origin.exported:
                creator = origin.holders[0], origin.exported.name
            own = added.setdefault(creator, {})
            for device in group.devices:
                if other := own.get(device):
                    message = f"two processes bind memory of gpu{device} to multicast {group.object.name!r}"
                    labels = (Label("also bound here", other.path, "key"),) if other.path != group.path else ()
                    notes = ("each GPU of a team is added by one process",)
                    yield Diagnostic("MT719", message, group.path, "key", labels=labels, notes=notes)
                own.setdefault(device, group)
    for label, member in members.items():
        for target in member.of(MulticastGroup).values():
            bound = added.get((label, target.name), {})
            if missing := [each for each in target.devices if each.id not in bound and not target.origin]:
                names = ", ".join(map(str, missing))
                message = f"no process binds memory of {names} to multicast {target.name!r}"
                help = f"write 'bind: {{{target.name}: […]}}' with chunks on {names}, or leave them out of the team"
                yield Diagnostic("MT719", message, (*target.path, "devices"), notes=(_WAITS,), help=help)


_WAITS = (
    "a bind waits until all GPUs of the team are added, and a process adds the GPUs whose memory it binds (fact 87)"
)
_TEAM_SECTIONS = ("multicast", "bind", "chunks", "imports", "exports", "map", "ranges")


def nodes(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT719 for objects that a process of one node imports from another."""
    for member in geometry.members.values():
        for target in member.of(MulticastGroup).values():
            if target.origin and target.origin.holders[0] not in geometry.members:
                message = f"multicast {target.name!r} belongs to another node, whose GPUs are its team"
                help = "create an object on each node, of the GPUs there"
                yield Diagnostic("MT719", message, (*target.path, "from"), help=help)


BINDINGS = Bindings(rules=(bound_memory, bound_places, accessing_gpus, mixed_ranges), joint_rules=(teams, nodes))
