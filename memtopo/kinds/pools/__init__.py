"""Memory pools, from which memory is allocated in the order of a stream, and which can be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

from msgspec.structs import replace
from pydantic import Field

from memtopo.common.units import Size, exact, rounded, rounded_up
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import (
    Access,
    Attribute,
    Grant,
    HandleType,
    Location,
    LocationKind,
    PoolAttribute,
    PoolProperties,
    gpu,
)
from memtopo.geometry.groups import LocatedGroup, gpus
from memtopo.geometry.model import Geometry
from memtopo.kinds.access.grants import access_trial, can_access
from memtopo.kinds.device_names import has_set
from memtopo.kinds.kind import Kind, Scope, Steps, Words
from memtopo.kinds.resolution import attempt, refuse, require_gpu, together, trial_reason
from memtopo.language.entries import Entry
from memtopo.language.fields import Boolean, Devices, one_or_more_of
from memtopo.language.scalars import FromText, FromWord, bytes_or, text_like
from memtopo.machine import Machine

RESERVED = 32 << 20
"""Unit of the memory that a pool reserves (fact 80)."""

LARGEST = 128 << 40
"""Maximum size that the driver refuses, and every larger one (fact 80)."""

ALIGNED = 512
"""Alignment of allocations in a pool (fact 80)."""

_HINTS = {"fabric": "memtopo shares pools via fd: write fd", "ipc": "legacy IPC cannot carry pools (fact 82): write fd"}
_Handle = Annotated[Literal["fd"], FromWord({"fd": "fd"}, "a handle type of a pool", _HINTS)]
PoolHandles = Annotated[list[_Handle], one_or_more_of(_Handle)]

_BYTES = text_like(r"[1-9][0-9]{0,19} ?(B|KiB|MiB|GiB|TiB)", "A size with a unit: 64MiB.")
_MaxSize = Annotated[Size, FromText(bytes_or("omit it for no limit"), _BYTES)]
_Threshold = Annotated[Size, FromText(bytes_or("omit it: by default a pool keeps nothing"), _BYTES)]


class Pool(Entry):
    """A stream-ordered memory pool, or one for each of several locations; `allocations` are made from it."""

    location: Devices = Field(description="GPU or NUMA node of the memory; several locations create one pool for each.")
    handles: PoolHandles = Field(
        default=[],
        description="fd, if the allocations are exported; a pool on host, without a node, cannot have handle types.",
    )
    max_size: _MaxSize | None = Field(
        default=None,
        description="Maximum number of bytes that a pool can reserve, less than 128TiB; the driver rounds it up to "
        "whole units of 32MiB. By default there is no limit.",
    )
    release_threshold: _Threshold | None = Field(
        default=None, description="Unused bytes that a pool keeps instead of releasing them; by default none."
    )
    reuse_follow_event_dependencies: Boolean = Field(
        default=True, description="If false, memory is not reused in another stream that waits for its free."
    )
    reuse_allow_opportunistic: Boolean = Field(
        default=True, description="If false, memory is not reused in a stream that did not wait for its free."
    )
    reuse_allow_internal_dependencies: Boolean = Field(
        default=True,
        description="If false, the driver does not make a stream wait for a free in order to reuse memory.",
    )
    accessed_by: Devices = Field(
        default=[],
        description="Other GPUs with access to all memory of the pool; they must be peers of the GPU of the pool.",
    )


class PooledGroup(LocatedGroup, frozen=True):
    """Base of pools and their allocations, to which the devices of `accessed_by` have access besides their location."""

    bound_to_context = False

    accessed_by: tuple[Location, ...] = ()
    home: int = 0
    """Ordinal of the GPU whose context and stream are used for memory of the host."""

    def device_of(self, index: int) -> int:
        """Ordinal of the GPU whose context and stream are used for an object."""
        location = self.location_of(index)
        return location.id if location.kind is LocationKind.GPU else self.home

    @property
    def contexts(self) -> frozenset[int]:
        """Ordinals of the GPUs of the objects, and of those with access."""
        own = gpus(self.locations)
        return own | gpus(self.accessed_by) | ({self.home} if len(own) < len(set(self.locations)) else frozenset())


class PoolGroup(PooledGroup, frozen=True):
    """Pools that one entry declares, one at each of its `locations`.

    `reserves` are the bytes that each of them reserves for its allocations, and `size` the least of these but 0.
    `attributes` differ from the driver's defaults.
    """

    noun = "pool"

    handles: HandleType = HandleType.NONE
    max_size: int = 0
    attributes: tuple[tuple[PoolAttribute, int], ...] = ()
    reserves: tuple[int, ...] = ()
    beyond: Location | None = None
    """Location that has less memory than the maximum size."""

    def properties_of(self, index: int) -> PoolProperties:
        """Properties that a pool is created with."""
        return PoolProperties(self.location_of(index), self.handles, self.max_size)

    def grants_of(self, index: int) -> tuple[Grant, ...]:
        """Access that is set, which is that of others than the pool's own location."""
        return other_grants(self.location_of(index), self.accessed_by)

    def details(self) -> Iterator[str]:
        """Handle types, limits and access."""
        yield from self.handles.words
        if self.max_size:
            yield f"at most {rounded(self.max_size)}"
        for attribute, value in self.attributes:
            keeps = attribute is PoolAttribute.RELEASE_THRESHOLD
            yield f"keeps {rounded(value)}" if keeps else f"no {attribute.name.lower().replace('_', ' ')}"
        if self.accessed_by:
            yield f"accessed by {', '.join(map(str, self.accessed_by))}"

    def shares(self) -> Mapping[Location, int]:
        """Number of pools with allocations at each location."""
        return {at: 1 for at, size in zip(self.locations, self.reserves, strict=False) if size}

    def demand(self) -> Mapping[Location, int]:
        """Bytes that the pool at each location reserves."""
        return {at: size for at, size in zip(self.locations, self.reserves, strict=False) if size}


def other_grants(own: Location, accessed_by: Iterable[Location]) -> tuple[Grant, ...]:
    """Access of devices besides the location of a pool; the host always has access to pools of its nodes (fact 81)."""
    on_host = own.kind is not LocationKind.GPU
    others = (each for each in accessed_by if each != own and not (on_host and each.kind is not LocationKind.GPU))
    return tuple(Grant(each, Access.RW) for each in others)


class Pools(Kind):
    """Section `pools`."""

    section = "pools"
    description = "Stream-ordered memory pools, by name, from which allocations are made."
    words = Words("pool", "pools", "p: {location: gpu0, handles: fd}", drawn="pool")
    entry = Pool
    group = PoolGroup
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "map": ("a pool has no physical handle that VMM can map", "declare a chunk"),
        "access": ("access to a pool is part of its entry", "declare it with 'accessed_by'"),
        "exports": ("a pool is exported with its allocations", "export an allocation of it: {allocation: a, via: fd}"),
    }

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        allocations: dict[str, list[tuple[int, int | None]]] = {}
        for each in scope.spec.section("allocations").values():
            allocations.setdefault(each.pool, []).append((rounded_up(each.size.bytes(1), ALIGNED), each.count))
        for name, entry in scope.spec.section(self.section).items():
            group = yield from attempt(self.resolve_entry, scope, entry, scope.spec.at(self.section, name))
            if group:
                reserves = tuple(_reserved(allocations.get(name, ()), group.count))
                group = replace(group, size=min(filter(None, reserves), default=0), reserves=reserves)
            yield from scope.add(self, name, group)

    def resolve_entry(self, scope: Scope, entry: Pool, path: Path) -> PoolGroup:
        locations, accessed_by = together(
            partial(scope.devices.resolve_all, entry.location, path),
            partial(scope.devices.resolve_all, entry.accessed_by, path, "accessed_by"),
        )
        require_gpu(f"pool {path[-1]!r}", scope.machine, path, "its memory is allocated in a stream of a GPU")
        limit = entry.max_size.bytes(1) if entry.max_size else 0
        smaller = [each for each in locations if limit > _memory(scope.machine, each) > 0]
        refuse(islice(_faults(entry, path, locations, limit, smaller), 1))
        counted = len(locations) > 1 or has_set(entry.location)
        users = [each.id for each in (*accessed_by, *scope.devices.gpus) if each.kind is LocationKind.GPU]
        return PoolGroup(
            name=str(path[-1]),
            path=path,
            count=len(locations),
            counted=counted,
            size=0,
            locations=tuple(locations),
            handles=HandleType.FD if entry.handles else HandleType.NONE,
            max_size=limit,
            beyond=next(iter(smaller), None),
            attributes=tuple(_attributes(entry)),
            accessed_by=tuple(dict.fromkeys(accessed_by)),
            home=users[0],
        )

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        from memtopo.kinds.pools.steps import CreatePool, SetPoolAccess, SetPoolAttribute

        for group in groups:
            for index in range(group.count):
                label, device = group.label(index), group.device_of(index)
                yield CreatePool(group.path, label, device, group.properties_of(index))
                for attribute, value in group.attributes:
                    yield SetPoolAttribute(group.path, label, device, attribute, value)
                if grants := group.grants_of(index):
                    yield SetPoolAccess(group.path, label, device, grants)

    def notes(self, geometry: Geometry) -> Iterator[str]:
        for group in geometry.of(PoolGroup).values():
            if group.size:
                each = "each reserves" if group.count > 1 else "reserves"
                yield f"pool {group.name}: {each} {rounded(group.size)} for its allocations, in whole units of 32MiB"
            if group.beyond:
                yield f"pool {group.name}: its max_size of {rounded(group.max_size)} is more than {group.beyond} has"


def supported(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT710 for GPUs without memory pools, and MT404 for pools to be shared where the trial of it failed."""
    for group in geometry.of(PoolGroup).values():
        for ordinal in sorted(gpus(group.locations)):
            if machine.devices[ordinal].attributes.get(Attribute.MEMORY_POOLS_SUPPORTED.name) == 0:
                message = f"pool {group.name!r}: {geometry.place(gpu(ordinal))} does not support memory pools"
                yield Diagnostic("MT710", message, (*group.path, "location"), help="declare a chunk or a buffer")
                break
            trial = machine.trial(gpu(ordinal), "pool-fd")
            if group.handles and trial.refused:
                message = f"pool {group.name!r}: sharing a pool via fd does not work on {geometry.place(gpu(ordinal))}"
                note = trial_reason(trial, "a trial with two processes")
                help = "'memtopo probe' reports the likely cause"
                yield Diagnostic("MT404", message, (*group.path, "handles"), notes=(note,), help=help)
                break


def peers(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT403 for GPUs without peer access to a pool, and MT406 for pools of a GPU accessed by the host."""
    for group in geometry.of(PoolGroup).values():
        yield from unreachable(f"pool {group.name!r}", group.path, group.locations, group.accessed_by, machine)


def unreachable(
    what: str, path: Path, owners: Sequence[Location], users: Sequence[Location], machine: Machine
) -> Iterator[Diagnostic]:
    """Yield MT403 and MT406 for the first of some devices that cannot access the memory of some locations."""
    label = (Label("its memory", (*path, "location")),) if path[-2:-1] == ("pools",) else ()
    for owner, user in ((owner, user) for owner in dict.fromkeys(owners) for user in users if user != owner):
        if can_access(user, owner, machine):
            continue
        code = "MT403" if user.kind is LocationKind.GPU and owner.kind is LocationKind.GPU else "MT406"
        message = f"{what}: {user} cannot access memory of {owner}"
        trial = access_trial(user, owner, machine)
        failed = trial is not None and trial.works is False
        notes = (trial.failure("a store in a trial", "was lost without an error"),) if trial and failed else ()
        help = f"leave {user} out of 'accessed_by'"
        yield Diagnostic(code, message, (*path, "accessed_by"), labels=label, notes=notes, help=help)
        return


def _attributes(entry: Pool) -> Iterator[tuple[PoolAttribute, int]]:
    """Attributes that differ from the driver's defaults."""
    for attribute in (
        PoolAttribute.REUSE_FOLLOW_EVENT_DEPENDENCIES,
        PoolAttribute.REUSE_ALLOW_OPPORTUNISTIC,
        PoolAttribute.REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ):
        if not getattr(entry, attribute.name.lower()):
            yield attribute, 0
    if entry.release_threshold:
        yield PoolAttribute.RELEASE_THRESHOLD, entry.release_threshold.bytes(1)


def _faults(
    entry: Pool, path: Path, locations: Sequence[Location], limit: int, smaller: Sequence[Location]
) -> Iterator[Diagnostic]:
    """Yield MT204 for a repeated location, and MT710 for what the driver refuses of a pool with a maximum size.

    Some locations have a `smaller` memory than that.
    """
    what, where = f"pool {path[-1]!r}", (*path, "max_size")
    help = "lower 'max_size', or omit it for no limit"
    if twice := next((each for each, times in Counter(locations).items() if times > 1), None):
        message = f"{what} lists {twice} twice, but has only one pool at each location"
        yield Diagnostic("MT204", message, (*path, "location"), help="declare another pool for it")
    if entry.handles and any(each.kind is LocationKind.HOST for each in locations):
        message = f"{what} is on the host as a whole, where pools cannot have handle types"
        note = "the driver returns INVALID_VALUE; pools of a NUMA node can be shared (fact 80)"
        yield Diagnostic("MT710", message, (*path, "handles"), notes=(note,), help="write 'location: host:0'")
    if limit >= LARGEST:
        message = f"{what}: the driver cannot create a pool with a max_size of {rounded(limit)}"
        note = f"it returns OUT_OF_MEMORY for {exact(LARGEST)} (fact 80)"
        yield Diagnostic("MT710", message, where, notes=(note,), help=help)
    if entry.handles and smaller:
        message = f"{what} can be shared, and its max_size of {rounded(limit)} is more than {smaller[0]} has"
        note = "of pools of 1TiB at most, an export failed, or the import did not return (fact 82)"
        yield Diagnostic("MT710", message, where, notes=(note,), help=help)


def _memory(machine: Machine, location: Location) -> int:
    """Bytes of memory at a location; 0 if it is unknown."""
    if location.kind is LocationKind.GPU:
        return machine.devices[location.id].memory_bytes if location.id < len(machine.devices) else 0
    return machine.node_bytes.get(location, 0)


def _reserved(allocations: Sequence[tuple[int, int | None]], pools: int) -> Iterator[int]:
    """Bytes that each of some pools reserves for its allocations, by aligned size and count (fact 80)."""
    for index in range(pools):
        # A pool has one more of each entry whose count leaves a remainder above its index.
        sizes = (size * ((count or pools) // pools + (index < (count or pools) % pools)) for size, count in allocations)
        yield rounded_up(sum(sizes), RESERVED)


POOLS = Pools(rules=(supported, peers))
