"""Exports: objects that other processes can import, and the registry of the kinds that they are of."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterator, Sequence
from itertools import islice
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from memtopo.common.text import enumerated
from memtopo.common.units import by_key
from memtopo.diagnostics.model import Diagnostic, Edit, InvalidValue, Label, Path
from memtopo.driver.handles import Via
from memtopo.geometry.groups import Group, largest_count
from memtopo.geometry.model import Geometry
from memtopo.kinds.chunks import CHUNKS
from memtopo.kinds.chunks.support import ACROSS, Support, chosen, elsewhere
from memtopo.kinds.dmabuf import DMABUF, DmaBufExports, resolve_memory
from memtopo.kinds.exportable import ExportGroup, ExportKind
from memtopo.kinds.ipc import BUFFERS, EVENTS
from memtopo.kinds.kind import Keys, Kind, ResolutionStage, Scope, Steps, Words
from memtopo.kinds.multicast import MULTICAST
from memtopo.kinds.pools import POOLS
from memtopo.kinds.pools.allocations import ALLOCATIONS, AllocationGroup
from memtopo.kinds.ranges import RANGES
from memtopo.kinds.resolution import Refused, attempt, indices, refuse, trial_reason
from memtopo.language.entries import Entry
from memtopo.language.fields import Alternatives, ChunkReference, Commit, Count, DmaBufMapping, ExportTransport, OwnName
from memtopo.language.names import Reference
from memtopo.machine import Machine

EXPORTABLE: dict[str, ExportKind] = {
    kind.group.noun: kind for kind in (CHUNKS, BUFFERS, EVENTS, ALLOCATIONS, MULTICAST)
}
"""Kinds whose objects other processes can import, by the key that names them in an export."""

ALL: dict[str, Kind] = {**EXPORTABLE, RANGES.group.noun: RANGES}
"""Kinds whose objects can be exported."""

DMA_BUFS = {
    noun: DmaBufExports(kind)
    for noun, kind in ALL.items()
    if kind is RANGES or (kind.group.memory and kind is not ALLOCATIONS)
}
"""Kinds whose memory can be exported as dma-bufs."""


def _transports() -> str:
    """Return the transports of all exportable kinds: `fd or fabric for chunks, ipc for buffers and events`."""
    sections = by_key((kind.transports, kind.words.plural) for kind in EXPORTABLE.values())
    each = (f"{enumerated(transports)} for {enumerated(names, 'and')}" for transports, names in sections.items())
    memory = enumerated((kind.words.plural for kind in DMA_BUFS.values()), "and")
    return f"{', '.join(each)}; dmabuf for {memory}"


class Export(Entry):
    """Chunks, buffers, an event or allocations, exported to other processes; or a range, for other devices."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in ALL]})

    chunk: ChunkReference | None = Field(
        default=None, description="A chunk, an element of a counted chunk, or a slice."
    )
    buffer: ChunkReference | None = Field(
        default=None, description="A buffer, an element of a counted buffer, or a slice."
    )
    event: ChunkReference | None = Field(default=None, description="An event.")
    multicast: ChunkReference | None = Field(default=None, description="A multicast object.")
    allocation: ChunkReference | None = Field(
        default=None, description="An allocation of a pool, an element, or a slice; the export includes its pool."
    )
    range: ChunkReference | None = Field(
        default=None, description="A range that is completely filled by chunks, via dmabuf."
    )
    part: OwnName | None = Field(default=None, description="A named part of each chunk, in pages of 4KiB; via dmabuf.")
    via: ExportTransport = Field(description=f"{_transports()}.")
    mapping: DmaBufMapping | None = Field(
        default=None, description="pcie: devices map a dma-buf through PCIe (BAR1), even if there is a faster path."
    )
    commit: Commit | None = Field(
        default=None, description="required: one writer fills the chunks and commits them; readers wait for the commit."
    )
    quota: Count | None = Field(
        default=None, description="Maximum number of elastic chunks lent to one client at the same time."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_no_pool(cls, written: object) -> object:
        if isinstance(written, dict) and POOLS.group.noun in written:
            note, help = POOLS.unusable["exports"]
            raise InvalidValue("MT101", note, help=help)
        return written

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if not self.what:
            examples = [f"'{{{key}: NAME, via: {usual_transport(kind)}}}'" for key, kind in ALL.items()]
            message = f"an export names {enumerated(kind.words.article for kind in ALL.values())}"
            raise InvalidValue("MT102", message, help=f"write {enumerated(examples)}")
        if len(self.what) > 1:
            both = " and ".join(f"{kind} {str(reference)!r}" for kind, reference in self.what)
            raise InvalidValue(
                "MT103", f"an export names one object, found {both}", help="write an export for each of them"
            )
        return self

    @property
    def what(self) -> list[tuple[str, Reference]]:
        """Key and reference of each exported object; a valid entry has one."""
        found = ((key, getattr(self, key)) for key in ALL)
        return [(key, reference) for key, reference in found if reference]


def usual_transport(kind: Kind) -> Via:
    """Transport that messages suggest for a kind."""
    return kind.transports[0] if isinstance(kind, ExportKind) else DMABUF


def exported_resources(geometry: Geometry, exports: Collection[str]) -> Iterator[Hashable]:
    """Yield the resources whose handles are those of some exports of a process."""
    for name, group in geometry.of(ExportGroup).items():
        if name in exports:
            yield from group.resources


def touched_exports(before: Geometry, after: Geometry, undone: Container[Hashable]) -> Iterator[str]:
    """Yield the exports of a process whose objects a change releases, or replaces by others.

    `undone` are the resources that it releases. An export that `after` lacks is touched only by these, unless it lends:
    nothing else knows then what its clients have.
    """
    exports = after.of(ExportGroup)
    for name, group in before.of(ExportGroup).items():
        replaced = not group.continued_by(exports[name]) if name in exports else group.lends
        if replaced or any(resource in undone for resource in group.resources):
            yield name


def emptied_exports(before: Geometry, after: Geometry, undone: Container[Hashable]) -> Iterator[str]:
    """Yield the exports that a writer has to commit again after a change that releases `undone` resources."""
    both = before.of(ExportGroup), after.of(ExportGroup)
    for name in touched_exports(before, after, undone):
        if name in both[1] and both[0][name].commit and both[1][name].commit:
            yield name


class Exports(Kind):
    """Section `exports`."""

    section = "exports"
    description = "Objects that other processes can import: w: {chunk: hot, via: fd}."
    words = Words(
        "export", "handles of exports", "w: {chunk: hot, via: fd}", "which cannot be exported to other processes"
    )
    entry = Export
    keys = Keys.OWN
    group = ExportGroup
    stage = ResolutionStage.EXPORTED

    def resolve(self, scope: Scope, *, dma_bufs: bool = False) -> Iterator[Diagnostic]:
        """Resolve the exports to other processes, or those via dmabuf, which need the mappings of all chunks."""
        for name, entry in scope.spec.section(self.section).items():
            if (entry.via == DMABUF) is dma_bufs:
                group = yield from attempt(self.resolve_entry, scope, entry, scope.spec.at(self.section, name))
                yield from scope.add(self, name, group)

    def resolve_entry(self, scope: Scope, entry: Export, path: Path) -> ExportGroup:
        key, reference = entry.what[0]
        kind, where = ALL[key], (*path, key)
        refuse(islice(_misplaced(path, entry, kind), 1))
        if (group := scope.of(kind.group).get(reference.name)) is None:
            raise _missing(scope, path, kind, reference.name, entry)
        via = _via(scope, path, entry, group)
        _require_lent(path, entry, group)
        first, stop = (0, largest_count(group)) if group.growing else indices(reference, group, where)
        dma_buf = resolve_memory(scope, path, entry, group, (first, stop)) if via == DMABUF else None
        return ExportGroup(
            str(path[-1]),
            path,
            DMA_BUFS[key] if dma_buf else EXPORTABLE[key],
            via,
            group,
            first,
            count=stop - first,
            counted=group.counted and (reference.first is None or stop - first > 1),
            size=dma_buf.size if dma_buf else group.size,
            commit=entry.commit is not None,
            dma_buf=dma_buf,
            quota=entry.quota,
        )

    def steps(self, geometry: Geometry, machine: Machine) -> Steps:
        """One test export per entry, since all objects of a group have the same properties."""
        for export in geometry.of(ExportGroup).values():
            if export.group.count:
                yield export.exporter.export_step(export, 0)


def _require_lent(path: Path, entry: Export, group: Group) -> None:
    """Raise `Refused` for keys of an export that only elastic chunks can have (MT804), or only others (MT607 too)."""
    name, declared = f"export {path[-1]!r}", (Label("declared here", (*group.path, "count")),)
    if not group.growing:
        if entry.quota is not None:
            message = f"{name} has a quota, and {group.name!r} is not elastic"
            help = f"omit it, or write 'count: {{min: 0, max: N}}' for {group.name!r}"
            raise Refused(Diagnostic("MT804", message, (*path, "quota"), labels=declared[: group.counted], help=help))
        return
    key, reference = entry.what[0]
    if entry.via == DMABUF:
        message = f"{name}: {group.name!r} is elastic, and a dma-buf needs chunks that stay"
        help = "export it via fd to processes"
        raise Refused(Diagnostic("MT804", message, (*path, key), labels=declared, help=help))
    if reference.first is not None:
        message = f"{name} includes only some elastic chunks {group.name!r}, but all of them must be lent"
        help = f"write '{key}: {group.name}'"
        raise Refused(Diagnostic("MT804", message, (*path, key), labels=declared, help=help))
    if entry.commit:
        note = "each client seals the chunks that it was lent, for a successor"
        message = f"{name}: elastic chunks cannot be committed"
        raise Refused(Diagnostic("MT607", message, (*path, "commit"), notes=(note,), help="omit 'commit'"))


def _missing(scope: Scope, path: Path, kind: Kind, name: str, entry: Export) -> Refused:
    """Return the refusal of an exported name that is not of the kind of its key."""
    spec, key = scope.spec, kind.group.noun
    where = (*path, key)
    others = (each for each in ALL.values() if each is not kind)
    other = next((each for each in others if name in spec.section(each.section)), None)
    reported = spec.may_have(kind.section, name)
    if name in spec.section("imports") and not reported:
        source = spec.section("imports")[name].source
        message = f"export {path[-1]!r} exports {name!r}, which is imported from {source}"
        note = f"the chain is {source} → {name} → {path[-1]}; the driver does not export imported memory (fact 26)"
        return Refused(Diagnostic("MT602", message, where, notes=(note,), help=f"import it from {source} directly"))
    if other and not reported:
        message = f"export {path[-1]!r}: {name!r} is {other.words.article}, not {kind.words.article}"
        via = entry.via if entry.via == DMABUF and other.group.noun in DMA_BUFS else usual_transport(other)
        return Refused(Diagnostic("MT201", message, where, help=f"write '{{{other.group.noun}: {name}, via: {via}}}'"))
    reported = reported or spec.may_have("imports", name) or scope.may_be_unusable(name, EXPORTS, where)
    return scope.errors.undeclared(key, name, where, spec.names(kind.section), reported=reported)


def _via(scope: Scope, path: Path, entry: Export, group: Group) -> Via:
    """Transport of an export. Of alternatives, the first that the objects are created for is taken."""
    if entry.via == DMABUF:
        return DMABUF
    kind = EXPORTABLE[entry.what[0][0]]
    has, what = kind.handle_types(group), f"{group.noun} {group.name} is created"
    options: Sequence[Via] = entry.via.options if isinstance(entry.via, Alternatives) else (entry.via,)
    refuse(islice(_unsupported(scope, path, options, group, kind), 1))

    importer = scope.importer_elsewhere(str(path[-1]))

    def support(via: Via) -> Support:
        if importer and via not in ACROSS.words:
            return Support(works=False, reason=elsewhere(importer))
        return Support(via in has, f"{what} {'with' if via in has else 'without'} it")

    via: Via = chosen(scope, entry.via, f"export {path[-1]}: via", (*path, "via"), support)
    return via


def _misplaced(path: Path, entry: Export, kind: Kind) -> Iterator[Diagnostic]:
    """Yield MT601 for a kind that cannot be a dma-buf, and for what only a dma-buf can be of."""
    if entry.via == DMABUF and kind.group.noun not in DMA_BUFS:
        message = f"export {path[-1]!r}: {kind.words.article} cannot be shared via {DMABUF}"
        pooled = kind is ALLOCATIONS  # the driver exports it, too (fact 83)
        note = "memtopo exports no memory of pools as dma-bufs" if pooled else "a dma-buf requires memory (fact 83)"
        help = "declare a buffer, or export it via fd to processes" if pooled else None
        yield Diagnostic("MT601", message, (*path, "via"), notes=(note,), help=help)
    if entry.via == DMABUF:
        return
    if not isinstance(kind, ExportKind):
        message = f"export {path[-1]!r}: {kind.words.article} has no handle, and cannot be shared via {entry.via}"
        help = f"write 'via: {DMABUF}' for other devices, or export its chunks to other processes"
        yield Diagnostic("MT601", message, (*path, "via"), help=help)
    for key in ("part", "mapping"):
        if getattr(entry, key):
            message = f"export {path[-1]!r} has a {key}, and is not via {DMABUF}"
            note = "handles of other transports refer to whole objects (facts 13, 46)"
            yield Diagnostic("MT601", message, (*path, key), notes=(note,), help=f"omit {key!r}")


def _unsupported(
    scope: Scope, path: Path, options: Sequence[Via], group: Group, kind: ExportKind
) -> Iterator[Diagnostic]:
    """Yield MT601 for transports that the kind does not support, or that the objects are never created for."""
    handles = getattr(scope.spec.section(kind.section).get(group.name), "handles", ())
    others = [word for each in handles if isinstance(each, Alternatives) for word in each.words]
    has, where, only = kind.handle_types(group), (*path, "via"), len(options) == 1
    noun, name, created_at = group.noun, group.name, group.path
    if isinstance(group, AllocationGroup):
        noun, name, created_at = "pool", str(group.pool_path[-1]), group.pool_path
    for via in options:
        if via not in kind.transports:
            message = f"export {path[-1]!r}: {kind.words.article} cannot be shared via {via}"
            notes, help = (kind.refusals.transport,), f"write 'via: {kind.transports[0]}'"
            yield Diagnostic("MT601", message, where, notes=notes, help=help)
        elif via not in has and (only or via not in others):
            created = f"{noun} {name!r} is created with {' and '.join(has) or 'no handle type'}"
            message = f"export {path[-1]!r}: {created}, not with {via}"
            help = f"declare the {noun} with 'handles: [{', '.join([*has, via])}]'"
            if via in others:
                help = f"write 'via: {' else '.join(others)}', as for its handles"
            edit = Edit(created_at, "value", "", f"handles: [{via}]") if only and not has else None
            labels = (Label("created here", created_at, "key"),)
            yield Diagnostic("MT601", message, where, labels=labels, help=help, edit=edit)


_COMMITTABLE = next(noun for noun, kind in EXPORTABLE.items() if not kind.refusals.commit)


def transports(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT404 for exports via a transport whose trial between two processes failed."""
    for export in geometry.of(ExportGroup).values():
        what = export.exporter.trials.get(export.via)
        if what is None:
            continue
        via = {"ipc": "legacy IPC", "dmabuf": "dma-buf"}.get(export.via, export.via)
        objects = f"{via} of {export.exporter.words.plural}"
        for location in sorted(set(export.locations)):
            if (trial := machine.trial(location, what)).refused:
                message = f"export {export.name!r}: {objects} does not work on {geometry.place(location)}"
                note = trial_reason(trial, "a trial" if export.dma_buf else "a trial with two processes")
                help = "'memtopo probe' reports the likely cause"
                yield Diagnostic("MT404", message, export.path, notes=(note,), help=help)
                break


def committed_kinds(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT607 for committed exports of objects that a writer cannot fill, or whose memory cannot be replaced."""
    for export in _committed(geometry):
        if export.exporter.refusals.commit:
            what = "a dma-buf" if export.dma_buf else export.exporter.words.article
            message = f"export {export.name!r}: {what} cannot be committed"
            help = f"remove 'commit', or export {EXPORTABLE[_COMMITTABLE].words.article}"
            help += f" via {EXPORTABLE[_COMMITTABLE].transports[0]}" * bool(export.dma_buf)
            notes = (export.exporter.refusals.commit,)
            yield Diagnostic("MT607", message, (*export.path, "commit"), notes=notes, help=help)


def committed_alone(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT607 for committed exports of objects that another export offers without a commit of this one."""
    exports = geometry.of(ExportGroup).values()
    for export in _committed(geometry):
        own = frozenset(export.resources)
        for other in exports:
            if other is not export and not own.isdisjoint(other.resources):
                message = f"export {export.name!r} is committed, and export {other.name!r} offers the same objects"
                label = Label("exported again here", other.path, "key")
                help = "export each object once"
                yield Diagnostic("MT607", message, (*export.path, "commit"), labels=(label,), help=help)
                break


def committed_processes(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT607 for committed exports that another process imports while both are built, before they are written.

    A layout of several nodes has none.
    """
    together = [each for label, each in geometry.processes.items() if not geometry.held or label in geometry.held]
    imports = {
        (holder, group.origin.export): group
        for process in together
        for group in process.every
        if group.origin and group.origin.siblings
        for holder in group.origin.holders
    }
    for label, process in geometry.processes.items():
        for export in _committed(process):
            if group := imports.get((label, export.name)):
                message = f"export {export.name!r} is committed, and import {group.name!r} of the same spec imports it"
                note = "processes of a spec import from one another while they are built, before anything is committed"
                help = "import it in a process that joins the held processes, or attach to the held layout"
                labels = (Label("imported here", group.path, "key"),)
                yield Diagnostic("MT607", message, (*export.path, "commit"), labels=labels, notes=(note,), help=help)
            elif geometry.nodes:
                message = f"export {export.name!r} is committed, and its layout has several nodes"
                note = (
                    "a change recreates memory that a writer has abandoned, but layouts of several nodes cannot "
                    "be changed"
                )
                help = "hold a separate layout on the node"
                yield Diagnostic("MT607", message, (*export.path, "commit"), notes=(note,), help=help)


def without_importers(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT601 for exports of a spec of one process that only processes of the same spec could import."""
    for export in geometry.of(ExportGroup).values():
        if export.exporter.refusals.outside:
            message = f"export {export.name!r}: {export.exporter.words.article} is {export.exporter.refusals.outside}"
            help = "declare the processes that import it under 'processes', or omit the export"
            yield Diagnostic("MT601", message, export.path, help=help)


def _committed(geometry: Geometry) -> Iterator[ExportGroup]:
    return (export for export in geometry.of(ExportGroup).values() if export.commit)


EXPORTS = Exports(
    rules=(transports, committed_kinds, committed_alone), joint_rules=(committed_processes, without_importers)
)
