"""Allocations of memory pools, which are shared with their pools."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import WHOLE_HOST, Access, Grant, HandleType, Location, LocationKind
from memtopo.geometry.groups import Group, gpus
from memtopo.geometry.model import Geometry
from memtopo.kinds.exportable import ExportGroup, ExportKind, Imported, ImportKeys, Refusals
from memtopo.kinds.kind import Scope, Steps, Words
from memtopo.kinds.pools import ALIGNED, RESERVED, PooledGroup, PoolGroup, other_grants, unreachable
from memtopo.language.entries import Entry
from memtopo.language.fields import Count, Name, PositiveBytes
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.objects import TryExport


class Allocation(Entry):
    """Memory of a pool; with `count`, distributed round-robin over the pools of an entry with several locations."""

    pool: Name = Field(description="Pool of the allocation.")
    size: PositiveBytes = Field(description="Bytes of each allocation.")
    count: Count | None = Field(
        default=None, description="Number of allocations: a becomes a.0, a.1 and so on; by default one of each pool."
    )


class AllocationGroup(PooledGroup, frozen=True):
    """Equal allocations that one entry declares: `count` of `size` bytes, distributed round-robin over `pools`.

    Their memory is that of the pools. `pools` are the labels of these, each at the location of the same index; of
    imported allocations, the labels that the exporter's pools have here, for each holder in turn.
    """

    noun = "allocation"
    offered_as = "allocation"
    addressed = memory = True

    pools: tuple[str, ...] = ()
    pool_path: Path = ()
    shared: bool = False
    """True if the pools can be exported."""

    def pool_of(self, index: int) -> str:
        """Label of the pool of one allocation."""
        return self.pools[self.pool_number(index)]

    def imported_with(self, index: int) -> Iterable[Hashable]:
        return (("pool", self.pool_of(index)),)

    def pool_number(self, index: int) -> int:
        """Index of the pool of one allocation in `pools`."""
        if self.origin is None:
            return index % len(self.pools)
        holder, number = divmod(index, self.origin.each)
        each = len(self.pools) // len(self.origin.holders)
        return holder * each + (self.origin.first + number) % each

    def own_access(self, index: int, machine: Machine | None) -> tuple[Grant, ...]:
        """Read and write access of the GPU or the host of the pool, and of devices with access to the pool."""
        own = self.location_of(index)
        of_owner = Grant(own if own.kind is LocationKind.GPU else WHOLE_HOST, Access.RW)
        return (of_owner, *other_grants(own, self.accessed_by))

    @property
    def by_kernels(self) -> bool:
        """True for memory of the host, which the driver does not copy (fact 81)."""
        return any(each.kind is not LocationKind.GPU for each in self.locations)

    def details(self) -> Iterator[str]:
        """Access of others than the pool's own location."""
        if self.accessed_by and self.origin:
            yield f"accessed by {', '.join(map(str, self.accessed_by))}"


class Allocations(ExportKind):
    """Section `allocations`."""

    section = "allocations"
    description = "Allocations of memory pools, by name, which can be exported with their pools."
    words = Words("allocation", "allocations", "a: {pool: p, size: 8MiB}", drawn="allocation")
    entry = Allocation
    group = AllocationGroup
    transports = ("fd",)
    import_keys = ImportKeys(("pool", "size"), optional=("accessed_by",))
    refusals = Refusals(
        transport="a pool is shared via fd (fact 82), together with 64 bytes for each of its allocations",
        commit="importers free an allocation before its exporter does (fact 82), so it is not replaced",
        own="the driver does not import an allocation into the process that has it (fact 82)",
        unseen="an allocation is imported for the GPU of its pool",
    )
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {
        "access": (
            "access to an allocation is that to its pool (fact 81)",
            "declare it with 'accessed_by' of its pool",
        ),
        "states": ("an allocation stays as long as the layout", "declare a chunk, which a state can drop"),
    }

    def resolve_entry(self, scope: Scope, entry: Allocation, path: Path) -> AllocationGroup:
        pool = scope.named(PoolGroup, entry.pool, (*path, "pool"), "pools")
        counted = entry.count is not None or pool.counted
        count = entry.count or pool.count
        used = min(count, pool.count)
        return AllocationGroup(
            name=str(path[-1]),
            path=path,
            count=count,
            counted=counted,
            size=entry.size.bytes(1),
            locations=pool.locations[:used],
            pools=tuple(pool.label(index) for index in range(used)),
            pool_path=pool.path,
            shared=HandleType.FD in pool.handles,
            accessed_by=pool.accessed_by,
            home=pool.home,
        )

    def handle_types(self, group: Group) -> tuple[str, ...]:
        assert isinstance(group, AllocationGroup)
        return ("fd",) if group.shared else ()

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        """Imports of all pools, and then all allocations, own and imported."""
        from memtopo.kinds.pools.steps import AliasAllocation, AllocateFromPool, ImportPointer
        from memtopo.kinds.step import HandleReference

        imported, users = set[str](), _users(groups)
        for group in groups:
            if group.origin:
                yield from _import_pools(group, imported, users)
        for group in groups:
            for index in range(group.count):
                label, device, pool = group.label(index), group.device_of(index), group.pool_of(index)
                readers = tuple(sorted(gpus(grant.location for grant in group.own_access(index, None))))
                memory = group.path, label, device, group.size, pool, readers
                if not group.origin:
                    yield AllocateFromPool(*memory, group.location_of(index))
                elif own := group.origin.own_label(index):
                    yield AliasAllocation(group.path, label, device, 0, own)
                else:
                    yield ImportPointer(*memory, HandleReference.of(group, index))

    def export_step(self, export: ExportGroup, index: int) -> TryExport:
        from memtopo.kinds.pools.steps import TryExportAllocation

        assert isinstance(export.group, AllocationGroup)
        return TryExportAllocation(*export.handle_fields(index), export.group.pool_of(export.first + index))

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> AllocationGroup:
        first = exported[0]
        assert isinstance(first, AllocationGroup)
        holders = imported.origin.holders
        pools = tuple(f"{holder}.{pool}" for holder in holders for pool in first.pools)
        return _imported(imported, first.size, pools)

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> AllocationGroup:
        text = imported.origin.text(imported.origin.holders[0])
        count = len(imported.locations)
        pools = (text,) if count == 1 else tuple(f"{text}.{number}" for number in range(count))
        return _imported(imported, size.bytes(1), pools)


def within_pools(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT711 for allocations that exceed the maximum size of their pool together (fact 80)."""
    pools = {pool.path: pool for pool in geometry.of(PoolGroup).values() if pool.max_size}
    used, exceeding = dict.fromkeys(pools, 0), dict[Path, AllocationGroup]()
    for group in geometry.of(AllocationGroup).values():
        if pool := pools.get(group.pool_path):
            used[pool.path] += -(-group.count // pool.count) * -(-group.size // ALIGNED) * ALIGNED
            if used[pool.path] > -(-pool.max_size // RESERVED) * RESERVED:
                exceeding.setdefault(pool.path, group)
    for path, group in exceeding.items():
        pool = pools[path]
        limit, needed = (-(-size // RESERVED) * RESERVED for size in (pool.max_size, used[path]))
        message = f"allocation {group.name!r}: pool {pool.name!r} is to have {exact(used[path])}"
        label = Label("its maximum size", (*pool.path, "max_size"))
        note = f"the driver returns OUT_OF_MEMORY beyond {exact(limit)}, in whole units of 32MiB (fact 80)"
        help = f"write 'max_size: {exact(needed)}', or allocate less"
        yield Diagnostic("MT711", message, (*group.path, "size"), labels=(label,), notes=(note,), help=help)


def imported_once(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT712 for allocations that a process imports twice: the first free would unmap both (fact 82)."""
    found: dict[tuple[str, object], AllocationGroup] = {}
    for group in geometry.of(AllocationGroup).values():
        for index in range(group.count if group.origin else 0):
            assert group.origin
            holder, number = group.origin.of(index)
            named = group.origin.resource(number) or (group.origin.export, number)
            other = found.setdefault((holder, named), group)
            if other is not group:
                message = f"import {group.name!r} imports an allocation that {other.name!r} also imports"
                label = Label("imported here", other.path, "key")
                note = "the driver does not count imports of one allocation: the first free unmaps it (fact 82)"
                help = f"use {other.name!r} in its place"
                yield Diagnostic("MT712", message, (*group.path, "from"), labels=(label,), notes=(note,), help=help)
                break


def imported_access(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT403 and MT406 for devices that cannot access the memory of imported allocations."""
    for group in geometry.of(AllocationGroup).values():
        if group.origin:
            yield from unreachable(f"import {group.name!r}", group.path, group.locations, group.accessed_by, machine)


def _imported(imported: Imported, size: int, pools: tuple[str, ...]) -> AllocationGroup:
    return imported.located(AllocationGroup, size, pools=pools, accessed_by=imported.accessed_by, home=imported.home)


def _users(groups: Iterable[AllocationGroup]) -> Mapping[str, Sequence[Location]]:
    """Devices that have access to each imported pool, by any import of its allocations."""
    found: dict[str, dict[Location, None]] = {}
    for group in groups:
        for pool in group.pools if group.origin and group.accessed_by else ():
            found.setdefault(pool, {}).update(dict.fromkeys(group.accessed_by))
    return {pool: tuple(users) for pool, users in found.items()}


def _import_pools(group: AllocationGroup, imported: set[str], users: Mapping[str, Sequence[Location]]) -> Steps:
    """Import the pools of a group that are not `imported` yet, once each, and set the access of their `users`."""
    from memtopo.kinds.pools.steps import ImportPool, SetImportedAccess
    from memtopo.kinds.step import HandleReference

    origin = group.origin
    assert origin
    for index in range(group.count):
        pool, device = group.pool_of(index), group.device_of(index)
        if pool in imported:
            continue
        imported.add(pool)
        if origin.own_label(index):
            yield from _extend_own_pool(group, index, users.get(pool, ()))
            continue
        source = HandleReference.of(group, index)
        if origin.exported:
            assert isinstance(origin.exported, AllocationGroup)
            source = source._replace(resource=("pool", origin.exported.pool_of(origin.first + source.number)))
        yield ImportPool(group.path, pool, device, source)
        if grants := other_grants(group.location_of(index), users.get(pool, ())):
            yield SetImportedAccess(group.path, pool, device, grants)


def _extend_own_pool(group: AllocationGroup, index: int, users: Sequence[Location]) -> Steps:
    """Set the access that imports of an own pool declare and the pool does not."""
    from memtopo.kinds.pools.steps import AliasPool, SetImportedAccess

    origin, pool, device = group.origin, group.pool_of(index), group.device_of(index)
    assert origin
    own = origin.exported
    assert isinstance(own, AllocationGroup)
    lacking = [user for user in users if user not in own.accessed_by]
    if grants := other_grants(group.location_of(index), lacking):
        yield AliasPool(group.path, pool, device, 0, own.pool_of(origin.first + origin.of(index)[1]))
        yield SetImportedAccess(group.path, pool, device, grants)


ALLOCATIONS = Allocations(rules=(within_pools, imported_once, imported_access))
