"""Exports: objects that other processes can import."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from memtopo.diagnostics.model import Diagnostic, Edit, Label, Path
from memtopo.driver.handles import Via
from memtopo.geometry.groups import Group
from memtopo.geometry.model import Geometry
from memtopo.kinds.allocations import ALLOCATIONS, AllocationGroup
from memtopo.kinds.alternatives import ACROSS, Support, chosen, elsewhere
from memtopo.kinds.dmabuf import DMABUF
from memtopo.kinds.dmabuf.resolution import resolve_memory
from memtopo.kinds.exportable import ExportKind
from memtopo.kinds.exports.entry import ALL, DMA_BUFS, EXPORTABLE, Export, usual_transport
from memtopo.kinds.exports.groups import ExportGroup
from memtopo.kinds.exports.rules import (
    committed_alone,
    committed_kinds,
    committed_processes,
    transports,
    without_importers,
)
from memtopo.kinds.kind import Kind, Rule, Scope, Stage
from memtopo.kinds.resolution import Resolution, indices, refuses_growing
from memtopo.language.alternatives import Alternatives
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.kinds.step import Step


class Exports(Kind):
    """Section `exports`."""

    section = "exports"
    description = "Objects that other processes can import: w: {chunk: hot, via: fd}."
    plural = "handles of exports"
    article = "an export"
    form = "w: {chunk: hot, via: fd}"
    referred = "which cannot be exported to other processes"
    entry = model = Export
    unique = False
    group = ExportGroup
    stage = Stage.EXPORTED

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve the exports that other processes import; dma-bufs follow after the mappings."""
        return self._resolve(scope, dma_bufs=False)

    def resolve_dma_bufs(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve exports via dmabuf, which need the mappings of all chunks."""
        return self._resolve(scope, dma_bufs=True)

    def _resolve(self, scope: Scope, *, dma_bufs: bool) -> Iterator[Diagnostic]:
        for name, entry in scope.spec.section(self.section).items():
            if (entry.via == DMABUF) is dma_bufs:
                group = yield from self.resolve_entry(scope, entry, scope.spec.at(self.section, name))
                yield from scope.add(self, name, group)

    def resolve_entry(self, scope: Scope, entry: Export, path: Path) -> Resolution[ExportGroup | None]:
        key, reference = entry.what[0]
        kind = ALL[key]
        group = scope.of(kind.group).get(reference.name)
        if wrong := _misplaced(path, entry, kind):
            yield wrong
        elif group is None:
            yield from _missing(scope, path, kind, reference.name, entry)
        else:
            return (yield from _exported(scope, path, entry, group))
        return None

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        """One test export per entry, since all objects of a group have the same properties."""
        for export in geometry.of(ExportGroup).values():
            yield export.exporter.try_export(export.path, export)

    def rules(self) -> tuple[Rule, ...]:
        return transports, committed_kinds, committed_alone

    def joint_rules(self) -> tuple[Rule, ...]:
        return committed_processes, without_importers


def _exported(scope: Scope, path: Path, entry: Export, group: Group) -> Resolution[ExportGroup | None]:
    """Objects of a group that an entry exports; None if it has an error."""
    key, reference = entry.what[0]
    via = yield from _via(scope, path, entry, group)
    where = (*path, key)
    if via is None or (yield from refuses_growing(group, "an export needs chunks that stay", where)):
        return None
    span = yield from indices(reference, group, where)
    if span is None:
        return None
    dma_buf = (yield from resolve_memory(scope, path, entry, group, span)) if via == DMABUF else None
    if via == DMABUF and dma_buf is None:
        return None
    first, stop = span
    return ExportGroup(
        str(path[-1]),
        path,
        key,
        via,
        group,
        first,
        stop - first,
        group.counted and (reference.first is None or stop - first > 1),
        dma_buf.size if dma_buf else group.size,
        commit=entry.commit is not None,
        dma_buf=dma_buf,
    )


def _missing(scope: Scope, path: Path, kind: Kind, name: str, entry: Export) -> Iterator[Diagnostic]:
    """Yield the diagnostic of an exported name that is not of the kind of its key."""
    spec, key = scope.spec, kind.group.noun
    if spec.may_have(kind.section, name):
        return
    where = (*path, key)
    others = (each for each in ALL.values() if each is not kind)
    other = next((each for each in others if name in spec.section(each.section)), None)
    if name in spec.section("imports"):
        source = spec.section("imports")[name].source
        message = f"export {path[-1]!r} exports {name!r}, which is imported from {source}"
        note = f"the chain is {source} → {name} → {path[-1]}; the driver does not export imported memory (fact 26)"
        help = f"import it from {source} directly"
        yield Diagnostic("MT602", message, where, notes=(note,), help=help)
    elif other:
        message = f"export {path[-1]!r}: {name!r} is {other.article}, not {kind.article}"
        via = entry.via if entry.via == DMABUF and other.group.noun in DMA_BUFS else usual_transport(other)
        yield Diagnostic("MT201", message, where, help=f"write '{{{other.group.noun}: {name}, via: {via}}}'")
    elif not (spec.may_have("imports", name) or (yield from scope.unusable(name, EXPORTS, where))):
        yield scope.errors.undeclared(key, name, where, spec.names(kind.section))


def _via(scope: Scope, path: Path, entry: Export, group: Group) -> Resolution[Via | None]:
    """Transport of an export. Of alternatives, the first that the objects are created for is taken."""
    if entry.via == DMABUF:
        return DMABUF
    kind = EXPORTABLE[entry.what[0][0]]
    has, what = kind.handle_types(group), f"{group.noun} {group.name} is created"
    options: Sequence[Via] = entry.via.options if isinstance(entry.via, Alternatives) else (entry.via,)
    others = kind.other_handle_types(scope, group)
    possible = {*has, *others} if len(options) > 1 else {*has}
    if wrong := next(filter(None, (_unsupported(path, kind, each, group, possible) for each in options)), None):
        written = len(options) == 1 and options[0] in others
        help = f"write 'via: {' else '.join(others)}', as for its handles" if written else wrong.help
        yield wrong._replace(help=help, edit=wrong.edit if len(options) == 1 else None)
        return None

    importer = scope.importer_elsewhere(str(path[-1]))

    def support(via: Via) -> Support:
        if importer and via not in ACROSS.words:
            return Support(works=False, reason=elsewhere(importer))
        return Support(via in has, f"{what} {'with' if via in has else 'without'} it")

    via: Via | None = yield from chosen(scope, entry.via, f"export {path[-1]}: via", (*path, "via"), support)
    return via


def _misplaced(path: Path, entry: Export, kind: Kind) -> Diagnostic | None:
    """Return MT601 for a kind that cannot be a dma-buf, and for what only a dma-buf can be of."""
    if entry.via == DMABUF:
        if kind.group.noun in DMA_BUFS:
            return None
        message = f"export {path[-1]!r}: {kind.article} cannot be shared via {DMABUF}"
        pooled = kind is ALLOCATIONS  # the driver exports it, too (fact 83)
        note = "memtopo exports no memory of pools as dma-bufs" if pooled else "a dma-buf is of memory (fact 83)"
        help = "declare a buffer, or export it via fd to processes" if pooled else None
        return Diagnostic("MT601", message, (*path, "via"), notes=(note,), help=help)
    if not isinstance(kind, ExportKind):
        message = f"export {path[-1]!r}: {kind.article} has no handle, and cannot be shared via {entry.via}"
        help = f"write 'via: {DMABUF}' for other devices, or export its chunks to other processes"
        return Diagnostic("MT601", message, (*path, "via"), help=help)
    for key in ("part", "mapping"):
        if getattr(entry, key):
            message = f"export {path[-1]!r} has a {key}, and is not via {DMABUF}"
            note = "the handles of other transports are of whole objects (facts 13, 46)"
            return Diagnostic("MT601", message, (*path, key), notes=(note,), help=f"leave {key!r} out")
    return None


def _unsupported(path: Path, kind: ExportKind, via: Via, group: Group, possible: Collection[str]) -> Diagnostic | None:
    """Return MT601 for a transport that the kind does not support, or that the objects are never created for."""
    if via not in kind.transports:
        message = f"export {path[-1]!r}: {kind.article} cannot be shared via {via}"
        return Diagnostic(
            "MT601", message, (*path, "via"), notes=(kind.transport_note,), help=f"write 'via: {kind.transports[0]}'"
        )
    if via in possible:
        return None
    has, created, created_at = kind.handle_types(group), f"{group.noun} {group.name!r}", group.path
    if isinstance(group, AllocationGroup):
        created, created_at = f"pool {str(group.pool_path[-1])!r}", group.pool_path
    message = f"export {path[-1]!r}: {created} is created with {' and '.join(has) or 'no handle type'}, not with {via}"
    label = Label("created here", created_at, "key")
    help = f"declare the {created.partition(' ')[0]} with 'handles: [{', '.join([*has, via])}]'"
    edit = None if has else Edit(created_at, "value", "", f"handles: [{via}]")
    return Diagnostic("MT601", message, (*path, "via"), labels=(label,), help=help, edit=edit)


EXPORTS = Exports()
