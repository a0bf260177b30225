"""Multicast objects: a team of GPUs, of which a store to one address reaches the memory of each (fact 87)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from memtopo.common.text import plural
from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.types import MULTICAST_SLOTS, HandleType, Location, Properties
from memtopo.geometry.groups import ChunkGroup, Group
from memtopo.geometry.model import Geometry
from memtopo.kinds.chunks import HandleKind
from memtopo.kinds.chunks.support import FABRIC_HELP, taken_handles
from memtopo.kinds.exportable import Imported, ImportKeys, Refusals
from memtopo.kinds.kind import Scope, Steps, Words
from memtopo.kinds.resolution import Refused, require_on_gpu, together, whole_granules
from memtopo.language.entries import Entry
from memtopo.language.fields import Devices, Handles, PositiveAmount, Rounding
from memtopo.machine import Machine

FROM_DOCUMENTATION = "from documentation: memtopo makes no multicast calls on GPUs, and none were measured (fact 87)"


class MulticastObject(Entry):
    """A multicast object of a team of GPUs, each of which has as much memory bound to it."""

    devices: Devices = Field(description="GPUs of the team: each binds memory, under 'bind'.")
    size: PositiveAmount = Field(
        description="Bytes that each GPU can bind, and of the multicast address; a multiple of the granularity of "
        "chunks."
    )
    handles: Handles = Field(default=[], description="Handle types for export to the other processes of the team.")
    round: Rounding | None = Field(default=None, description="up: round the size up to a multiple of the granularity.")


class MulticastGroup(ChunkGroup, frozen=True):
    """One multicast object, which is mapped as a chunk is, but has no memory: that of its `devices` is bound to it."""

    noun = "multicast"
    offered_as = "multicast"
    memory = False
    contexts = frozenset[int]()  # GPUs that are added and granted access have their contexts for that

    devices: tuple[Location, ...] = ()

    def shares(self) -> Mapping[Location, int]:
        """Nothing: the memory is that of the chunks that are bound."""
        return {}

    def details(self) -> Iterator[str]:
        """Number of GPUs and handle types."""
        yield f"team of {plural(len(self.devices), 'GPU')}"
        yield from self.handles.words


class Multicast(HandleKind):
    """Section `multicast`."""

    section = "multicast"
    description = "Multicast objects of teams of GPUs, by name: team: {devices: gpus, size: 32MiB}."
    words = Words("multicast object", "multicast objects", "team: {devices: gpus, size: 32MiB}", drawn="multicast")
    entry = MulticastObject
    group = MulticastGroup
    import_keys = ImportKeys(("size",))
    refusals = Refusals(
        granules="",
        transport="legacy IPC supports buffers and events only (fact 31)",
        commit="a multicast object has no memory",
        outside="for processes of the same spec",
    )

    def resolve_entry(self, scope: Scope, entry: MulticastObject, path: Path) -> MulticastGroup:
        name, where = str(path[-1]), (*path, "devices")
        listed = scope.devices.resolve_all(entry.devices, path, "devices")
        require_on_gpu(f"multicast {name!r}", listed, where)
        if twice := next((each for each in listed if listed.count(each) > 1), None):
            raise Refused(Diagnostic("MT204", f"{twice} is in the team of {name!r} twice", where, help="name it once"))
        unit = scope.machine.multicast_granule(listed)
        declared = entry.size.bytes(unit)
        what, at, rounding = f"multicast {name!r}", (*path, "size"), entry.round is not None
        note = f"the granularity of multicast objects is assumed to be that of chunks, {exact(unit)} (fact 87)"
        handles, size = together(
            partial(taken_handles, scope, "multicast", path, entry.handles, entry.devices),
            partial(whole_granules, "MT301", what, declared, unit, at, note, rounding=rounding),
        )
        found, team = tuple(Properties(each, handles) for each in listed), tuple(listed)
        return MulticastGroup(name, path, declared, unit, found, team, size=size, devices=team)

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        from memtopo.kinds.multicast.steps import CreateMulticast, ImportMulticast
        from memtopo.kinds.step import HandleReference

        for group in groups:
            if group.origin:
                kind = HandleType[group.origin.via.upper()]
                yield ImportMulticast(group.path, group.name, group.size, kind, HandleReference.of(group, 0))
            else:
                team = ", ".join(map(str, group.devices))
                yield CreateMulticast(group.path, group.name, group.size, len(group.devices), team, group.handles)

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> MulticastGroup:
        group = exported[0]
        assert isinstance(group, MulticastGroup)
        plain = tuple(Properties(each) for each in group.devices)
        return replace(group, name=imported.name, path=imported.path, properties=plain, origin=imported.origin)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(MulticastGroup).values():
            if group.size != group.declared and not group.origin:
                yield f"multicast {group.name}: {exact(group.declared)} rounded up to {exact(group.size)}"
            yield f"multicast {group.name}: {FROM_DOCUMENTATION}"

    def untried(self, geometry: Geometry, machine: Machine) -> Iterator[str]:
        for group in geometry.of(MulticastGroup).values():
            yield from _untried(group, machine)


def supported(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT405 for GPUs without multicast, and MT718 for those on which it was never tried."""
    for group in _created(geometry):
        where = (*group.path, "devices")
        refused = [each for each in group.devices if machine.trial(each, "multicast").refused]
        if refused:
            trial = machine.trial(refused[0], "multicast")
            message = f"multicast {group.name!r}: multicast does not work on {geometry.place(refused[0])}"
            note = trial.failure("a trial", "failed") if trial.works is False else "the device does not advertise it"
            yield Diagnostic("MT405", message, where, notes=(note,))
        else:
            notes = ("it can be validated, planned and drawn; 'apply' refuses it (fact 87)",)
            for message in _untried(group, machine):
                yield Diagnostic("MT718", f"{message} of this machine", where, notes=notes)


def handle_types(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT404 for handle types that a GPU of the team does not support."""
    for group in _created(geometry):
        for word, location in ((word, each) for word in group.handles.words for each in group.devices):
            trial = machine.trial(location, word)
            if trial.refused or (trial.works is None and word != "fd"):
                message = f"multicast {group.name!r}: handle type {word!r} does not work on {geometry.place(location)}"
                note = trial.failure("a trial of one granule", "failed") if trial.works is False else "it was not tried"
                help = FABRIC_HELP if word == "fabric" else None
                yield Diagnostic("MT404", message, (*group.path, "handles"), notes=(note,), help=help)
                break


def cliques(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT403 for teams of GPUs that cannot access the memory of one another."""
    for group in _created(geometry):
        for one, other in combinations(group.devices, 2):
            if not (machine.can_access(one.id, other.id) and machine.can_access(other.id, one.id)):
                message = f"multicast {group.name!r}: {one} and {other} have no access to the memory of each other"
                note = "the GPUs of a team must be in one clique, connected by NVLink (fact 87)"
                help = f"leave {one} or {other} out of the team"
                yield Diagnostic("MT403", message, (*group.path, "devices"), notes=(note,), help=help)
                break


def slots(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT721 for more multicast objects in all processes than a switch has slots."""
    every = [group for member in geometry.members.values() for group in _created(member)]
    if len(every) > MULTICAST_SLOTS:
        message = f"{len(every):,} multicast objects are more than the {MULTICAST_SLOTS} slots of a switch"
        note = "a bind then fails with OUT_OF_MEMORY (fact 87, nccl#2077); other programs also need slots"
        help = "bind more memory to fewer objects, at other offsets"
        yield Diagnostic("MT721", message, every[MULTICAST_SLOTS].path, "key", notes=(note,), help=help)


def _created(geometry: Geometry) -> Iterator[MulticastGroup]:
    return (group for group in geometry.of(MulticastGroup).values() if not group.origin)


def _untried(group: MulticastGroup, machine: Machine) -> Iterator[str]:
    if found := [str(each) for each in group.devices if machine.trial(each, "multicast").works is None]:
        yield f"multicast {group.name!r}: multicast was never tried on {', '.join(found)}"


MULTICAST = Multicast(rules=(supported, handle_types, cliques), joint_rules=(slots,))
