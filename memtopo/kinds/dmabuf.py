"""Dma-bufs: exports of addresses, which network cards and other devices map, and no CUDA driver imports (fact 84)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from memtopo.common.units import NamedPart, exact, shorten
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.handles import Via
from memtopo.driver.types import DmaBufFlags, Location
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.kinds.exportable import DmaBufMemory, ExportGroup, ExportKind, Refusals
from memtopo.kinds.kind import Kind, Scope
from memtopo.kinds.resolution import Refused, require_on_gpu

if TYPE_CHECKING:
    from memtopo.kinds.objects import TryExport


DMABUF: Via = "dmabuf"


PAGE = 4 << 10
"""Bytes of the host's pages, of which a dma-buf consists (fact 83)."""


_LISTED = 4
"""Objects that a message names."""


class DmaBufEntry(Protocol):
    """Entry of an export via dmabuf."""

    @property
    def part(self) -> str | None: ...
    @property
    def mapping(self) -> str | None: ...


def resolve_memory(scope: Scope, path: Path, entry: DmaBufEntry, group: Group, span: tuple[int, int]) -> DmaBufMemory:
    """Memory behind the objects of a group from the first index of a span to before the second. Raises `Refused`."""
    part = _part(scope, path, entry.part, group)
    if group.origin and not isinstance(group, ChunkGroup):
        source = group.origin.text(group.origin.holders[0])
        message = f"export {path[-1]!r} exports {group.name!r}, which is imported from {source}"
        note = "cuMemGetHandleForAddressRange returns INVALID_VALUE for memory that was opened (fact 83)"
        where = (*path, group.noun)
        help = "export it via dmabuf in the process that has it"
        raise Refused(Diagnostic("MT602", message, where, notes=(note,), help=help))
    if part.offset % PAGE or part.size % PAGE:
        key = "part" if entry.part else group.noun
        extent = f"{exact(part.size)} from {exact(part.offset)} of {group.name!r}"
        message = f"export {path[-1]!r}: {part.name!r} has {extent}"
        note = f"a dma-buf begins and ends at pages of {exact(PAGE)} (fact 83)"
        start, end = part.offset // PAGE * PAGE, -(-(part.offset + part.size) // PAGE) * PAGE
        label = Label("declared here", (*group.path, "size"))
        if entry.part:
            label = Label("declared here", (*group.path, "parts", part.name), "key")
        help = f"make it the {exact(end - start)} from {exact(start)}"
        raise Refused(Diagnostic("MT714", message, (*path, key), labels=(label,), notes=(note,), help=help))
    flags = DmaBufFlags.PCIE if entry.mapping else DmaBufFlags.NONE
    memory = DmaBufMemory(group, part.offset, part.size, flags, scope.placements_of(group))
    if scope.has_unresolved("map") or scope.has_unresolved("ranges"):
        raise Refused
    if isinstance(group, RangeGroup):
        for index in range(*span):
            _require_filled(path, memory, group, index)
    elif isinstance(group, ChunkGroup):
        _require_mapped(path, memory, group, range(*span))
    _require_supported(scope, path, memory, range(*span))
    return memory


def _require_supported(scope: Scope, path: Path, memory: DmaBufMemory, indices: Sequence[int]) -> None:
    """Raise `Refused` for memory that the driver exports no dma-buf of (fact 83)."""
    found: Iterator[Location] = map(memory.location, indices)
    if isinstance(memory.group, RangeGroup):
        found = (location for each in memory.placements for location in each.chunk.distinct_locations)
    locations = list(dict.fromkeys(found))
    require_on_gpu(f"the memory of export {path[-1]!r}", locations, path)
    if hidden := next((each for each in locations if not scope.devices.sees(each)), None):
        note = "a dma-buf is exported in the context of its GPU (fact 83)"
        raise Refused(scope.devices.unseen(str(hidden), hidden, path, notes=(note,)))
    groups = [memory.group, *(each.chunk for each in memory.placements)]
    compressible = (each for each in groups if isinstance(each, ChunkGroup) and each.properties[0].compressible)
    if chunk := next(compressible, None):
        message = f"export {path[-1]!r}: chunk {chunk.name!r} is compressible, and cannot be exported via dmabuf"
        label = Label("compressible here", (*chunk.path, "compressible"))
        note = "cuMemGetHandleForAddressRange returns UNKNOWN (fact 83)"
        help = "omit 'compressible'"
        raise Refused(Diagnostic("MT405", message, path, labels=(label,), notes=(note,), help=help))
    for location in locations if memory.flags else ():
        trial = scope.machine.trial(location, "dmabuf-pcie")
        if not trial.works:
            message = f"export {path[-1]!r}: a dma-buf that is mapped through PCIe does not work on {location}"
            note = trial.failure("a trial", "failed") if trial.works is False else "it was not tried on this machine"
            help = "omit 'mapping': without a faster way, devices map it through PCIe anyway"
            raise Refused(Diagnostic("MT404", message, (*path, "mapping"), notes=(note,), help=help))


def _part(scope: Scope, path: Path, name: str | None, group: Group) -> NamedPart:
    """Part of each object that is exported; without a name, all of it."""
    if name is None:
        return NamedPart(group.name, 0, group.size)
    parts: Mapping[str, NamedPart] = {part.name: part for part in group.parts}
    if name not in parts:
        message = f"{group.name!r} has no part {shorten(name)!r}"
        refused = scope.errors.undeclared("part", name, (*path, "part"), parts)
        raise Refused(*(each._replace(message=message) for each in refused.diagnostics))
    return parts[name]


def _require_mapped(path: Path, memory: DmaBufMemory, group: ChunkGroup, indices: Sequence[int]) -> None:
    """Raise `Refused` with MT713 for chunks that are mapped nowhere."""
    mapped = {at for each in memory.placements for at in each.indices}
    if missing := [group.label(index) for index in indices if index not in mapped]:
        names = ", ".join(map(repr, missing[:_LISTED])) + " …" * (len(missing) > _LISTED)
        message = f"export {path[-1]!r}: {names} {'is' if len(missing) == 1 else 'are'} mapped nowhere"
        label = Label("declared here", group.path, "key")
        note = "a dma-buf requires addresses, and a chunk has addresses only where it is mapped (fact 83)"
        help = "map it into a range, or export it via fd"
        raise Refused(Diagnostic("MT713", message, path, labels=(label,), notes=(note,), help=help))


def _require_filled(path: Path, memory: DmaBufMemory, group: RangeGroup, index: int) -> None:
    """Raise `Refused` with MT713 for a range that chunks of one device do not fill."""
    label, where, at = group.label(index), (*path, "range"), 0
    declared = (Label("declared here", group.path, "key"),)
    if group.elastic:
        message = f"export {path[-1]!r}: range {label!r} is elastic, so its memory can change"
        help = "export a range with fixed mappings, or its chunks"
        raise Refused(Diagnostic("MT713", message, where, labels=declared, help=help))
    locations: set[Location] = set()
    for placement in memory.inside(index):
        if not placement.chunk.memory:
            maps = f"range {label!r} maps {placement.chunk.name!r}, which has no memory"
            help = "export the chunks that are bound to it"
            raise Refused(Diagnostic("MT713", f"export {path[-1]!r}: {maps}", where, labels=declared, help=help))
        if placement.offset > at:
            break
        at = max(at, placement.end)
        locations.update(placement.chunk.location_of(each) for each in placement.indices)
    if at < group.size:
        message = f"export {path[-1]!r}: nothing is mapped at {exact(at)} of range {label!r}"
        note = "a dma-buf requires memory without holes (fact 83)"
        help = "map chunks into all of it, or export the chunks"
        raise Refused(Diagnostic("MT713", message, where, labels=declared, notes=(note,), help=help))
    if len(locations) > 1:
        names = " and ".join(map(str, sorted(locations)[:_LISTED]))
        message = f"export {path[-1]!r}: the chunks in range {label!r} are on {names}"
        note = "a dma-buf requires memory of a single device (fact 83)"
        raise Refused(Diagnostic("MT713", message, where, labels=declared, notes=(note,), help="export its chunks"))


class DmaBufExports(ExportKind):
    """Export of the objects of one kind as dma-bufs."""

    transports = (DMABUF,)
    trials: ClassVar[Mapping[Via, str]] = {DMABUF: "dmabuf"}
    refusals = Refusals(
        commit="a process that imports committed memory maps it, and a dma-buf cannot be imported (fact 84)"
    )

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.group, self.words = kind.group, kind.words  # type: ignore[misc]

    def export_step(self, export: ExportGroup, index: int) -> TryExport:
        from memtopo.kinds.chunks.steps import TryExportDmaBuf

        memory, number = export.dma_buf, export.first + index
        assert memory
        path, name, noun, label, _, count = export.handle_fields(index)
        via = f"{DMABUF}, pcie" if memory.flags else DMABUF
        return TryExportDmaBuf(path, name, noun, label, via, count, memory, number)
