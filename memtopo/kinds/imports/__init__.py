"""Imports: objects exported by other processes. The kinds of `EXPORTABLE` define how they are imported.

From other nodes, fabric handles alone carry them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, cycle, islice

from msgspec.structs import replace

from memtopo.common.text import enumerated, plural
from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group, Origin, has_size, largest_count
from memtopo.kinds.chunks.support import ACROSS
from memtopo.kinds.device_names import all_gpus
from memtopo.kinds.dmabuf import DMABUF
from memtopo.kinds.exportable import ExportGroup, ExportKind, Imported
from memtopo.kinds.exports import EXPORTABLE, EXPORTS
from memtopo.kinds.imports.entry import (
    LOCATIONS,
    Import,
    declared_access,
    from_outside,
    in_order,
    refuse_granules,
    require_order,
)
from memtopo.kinds.kind import Kind, ResolutionStage, Scope, Sibling, Words
from memtopo.kinds.resolution import Refused, attempt, collected, refuse, together
from memtopo.language.entries import Spec, rank
from memtopo.language.fields import OWN_NODE
from memtopo.language.names import ImportSource
from memtopo.language.scalars import LARGEST_COUNT
from memtopo.machine import Machine


class Imports(Kind):
    """Section `imports`."""

    section = "imports"
    description = (
        "Objects exported by other processes, used like "
        f"{enumerated((kind.words.plural for kind in EXPORTABLE.values()), 'and')}: w: {{from: server.w}}."
    )
    words = Words("import", "handles of imports", "w: {from: server.w}")
    entry = Import
    stage = ResolutionStage.IMPORTED

    def resolve_entry(self, scope: Scope, entry: Import, path: Path) -> Group:
        if entry.source.sibling:
            return from_sibling(scope, path, entry)
        holder, export = entry.source.holder, entry.source.export
        if process := scope.siblings.processes.get(holder):
            same = f"{holder!r}, which is the name of a process of this spec"
            message = f"import {path[-1]!r} is from a held layout {same}"
            label = Label("the process", process.spec.path, "key")
            help = f"write {holder}.{export} for the process, or choose another name for it"
            raise Refused(Diagnostic("MT203", message, (*path, "from"), labels=(label,), help=help))
        return from_outside(scope, path, entry)


def depends_on_number(process: Spec) -> bool:
    """Return true if an import has an order, or is of handles that the process itself cannot open."""
    exports = process.section(EXPORTS.section)
    imports = process.section(IMPORTS.section).values()
    own = (exports.get(each.source.export) for each in imports if is_own(process, each))
    kinds = (EXPORTABLE[key] for export in own if export for key, _ in export.what)
    return any(each.order for each in imports) or any(kind.refusals.own for kind in kinds)


def crossing_exports(spec: Spec) -> Iterator[tuple[tuple[str, str], str]]:
    """Exports, each as a process of the spec and a name, with the process that imports them on another node."""
    for name, process in spec.processes.items():
        for entry in process.section(IMPORTS.section).values():
            source, holder = entry.source, spec.processes.get(entry.source.holder)
            if source.sibling and holder and crosses(process, entry.order, holder):
                yield (source.holder, source.export), name


_LISTED = 8
"""Maximum number of locations in a message."""


def from_sibling(scope: Scope, path: Path, entry: Import) -> Group:
    """Group of an import from another process of the spec. Raises `Refused`."""
    source, where = entry.source, (*path, "from")
    sibling = _ordered(scope, path, entry, _process(scope, source, where))
    exports = _exports(scope, path, entry, sibling)
    kind = exports[0].exporter
    itself = bool(kind.refusals.own) and sibling.spec.path == scope.spec.path
    if itself and scope.spec.instances is None:
        message = f"import {path[-1]!r} would open {source} in the process that exports it"
        own_kinds = {key: each for key, each in EXPORTABLE.items() if each.refusals.own}
        same = enumerated(key for key, each in own_kinds.items() if exports[0].via in each.transports)
        others = enumerated(each.words.plural for key, each in EXPORTABLE.items() if key not in own_kinds)
        help = f"use the {same} directly, or share {others} via fd, which a process can import from itself"
        label = Label("exported here", exports[0].path, "key")
        notes = (kind.refusals.own,)
        raise Refused(Diagnostic("MT605", message, where, labels=(label,), notes=notes, help=help))
    (accessed_by, home), _ = together(
        partial(declared_access, scope, path, entry, kind), partial(_require_usable, scope, where, sibling, exports)
    )
    layout = "" if scope.spec.held else scope.siblings.layout
    labels = tuple(label for label, _ in sibling.instances)
    origin = Origin(labels, exports[0].name, exports[0].count, exports[0].via, siblings=not layout, layout=layout)
    if not layout:  # else a process that joins imports from a held layout, whose objects this spec does not have
        own = f"{source.holder}.{scope.index}" if itself else ""
        origin = replace(origin, exported=exports[0].group, first=exports[0].first, own=own)
    counted = exports[0].counted or sibling.spec.instances is not None
    nodes = [other.node if other.node != scope.node else None for _, other in sibling.instances]
    locations, limit = _distributed(exports, nodes), exports[0].count if exports[0].lends else None
    count = 0 if exports[0].lends else origin.each * len(exports)
    imported = Imported(path, count, counted, locations, origin, None, accessed_by, home, limit)
    group = kind.import_exported(imported, [export.group for export in exports])
    together(
        partial(_require_equal, scope, entry, group, exports[0]), partial(_require_seen, scope, where, kind, imported)
    )
    return group


def _process(scope: Scope, source: ImportSource, path: Path) -> Sibling:
    """Process of the spec that an import is from. Raises `Refused` with MT201 if there is none."""
    name = source.holder
    if scope.siblings.spec.may_have("processes", name):
        raise Refused
    if found := scope.siblings.processes.get(name):
        return found
    if scope.siblings.processes:
        raise scope.errors.undeclared("process", name, path, scope.siblings.processes)
    message = f"process {name!r} is not declared: this spec has no processes"
    raise Refused(Diagnostic("MT201", message, path, help=f"write {name}/{source.export} for a held layout"))


def _ordered(scope: Scope, path: Path, entry: Import, sibling: Sibling) -> Sibling:
    """The process with those of its instances that an import is from, in order.

    Raises `Refused` with MT616 for a process that is not there when the importing one is built.
    """
    instances, holder = sibling.instances, sibling.spec
    if scope.siblings.spec.held_processes and not holder.held:
        message = f"import {path[-1]!r} is from process {holder.name!r}, which is not held"
        own = "it is held, and built before the others"
        note = own if scope.spec.held else "processes that are not held join one by one"
        held = next(each.spec for each in scope.siblings.processes.values() if each.spec.held)
        label = Label("held", held.at("held"))
        help = f"write 'held: true' in process {holder.name!r}, or in none: then all are built together"
        raise Refused(Diagnostic("MT616", message, (*path, "from"), labels=(label,), notes=(note,), help=help))
    if OWN_NODE in (entry.order or ()):
        instances = tuple(each for each in instances if each[1].node == scope.node)
    require_order(scope, path, entry.order, holder, instances)
    return sibling._replace(instances=in_order(entry.order, scope.index, instances))


def _require_usable(scope: Scope, where: Path, sibling: Sibling, exports: Sequence[ExportGroup]) -> None:
    """Raise `Refused` for an import that does not work, from another node or of what is not lent.

    It is MT616 for an import, by a process that joins a held one, of objects that only processes of a run share, and
    MT804 for one of elastic chunks that no holder lends, or of several processes.
    """
    require_crossing(scope, where, sibling, exports[0])
    kind = exports[0].exporter
    if kind.refusals.outside and sibling.spec.held and not scope.spec.held:
        message = f"import {where[-2]!r} is {kind.words.article} of process {sibling.spec.name!r}, which is held"
        note = f"{kind.words.article} is {kind.refusals.outside}"
        help = "write 'held: true' in both processes, or in neither"
        label = Label("held", sibling.spec.at("held"))
        raise Refused(Diagnostic("MT616", message, where, labels=(label,), notes=(note,), help=help))
    if not exports[0].lends:
        return
    message, label = f"import {where[-2]!r} is of elastic chunks", Label("exported here", exports[0].path, "key")
    if not sibling.spec.held or scope.spec.held:
        message += f" of process {sibling.spec.name!r}, which is built together with this one"
        note = "they are lent only to processes that join individually or attach"
        help = f"write 'held: true' only in process {sibling.spec.name!r}, or import chunks with a plain count"
        raise Refused(Diagnostic("MT804", message, where, labels=(label,), notes=(note,), help=help))
    if len(exports) > 1:
        message += f" of {len(exports)} processes, but one process must lend the pool"
        help = "write 'order: [own]' for processes of the same number, or an import for each of several processes"
        raise Refused(Diagnostic("MT804", message, where, labels=(label,), help=help))


def is_own(spec: Spec, entry: Import) -> bool:
    """Return true for an import from the process itself, which is `spec`."""
    return entry.source.sibling and spec.path[-1:] == (entry.source.holder,)


def _exports(scope: Scope, path: Path, entry: Import, sibling: Sibling) -> list[ExportGroup]:
    """Exports of one name by each instance of a process. Raises `Refused`."""
    source, where = entry.source, (*path, "from")
    found = [each.of(ExportGroup).get(source.export) for _, each in sibling.instances]
    exports = [export for export in found if export]
    written = sibling.spec.section("exports").get(source.export)
    if written and written.via == DMABUF:
        message = f"import {path[-1]!r}: {source} is a dma-buf, which other devices import, and no CUDA driver"
        note = "cuImportExternalMemory returns NOT_SUPPORTED (fact 84)"
        label = Label("exported here", sibling.spec.at("exports", source.export), "key")
        help = "also export it via fd, and import that export"
        raise Refused(Diagnostic("MT604", message, where, labels=(label,), notes=(note,), help=help))
    if sibling.spec.countless or len(exports) < len(found):
        known, reported = sibling.spec.names("exports"), sibling.spec.may_have("exports", source.export)
        raise scope.errors.undeclared("export", source.export, where, known, reported=reported)
    if not exports:
        raise Refused
    sizes = {export.size: label for export, (label, _) in zip(exports, sibling.instances, strict=True)}
    total = sum(export.count for export in exports)
    label = Label("exported here", exports[0].path, "key")
    if total > LARGEST_COUNT:
        message = f"import {path[-1]!r} is {total:,} handles, more than the {LARGEST_COUNT:,} allowed in one spec"
        raise Refused(Diagnostic("MT109", message, where, labels=(label,)))
    if len(sizes) > 1:
        each = " and ".join(f"{exact(size)} in {holder}" for size, holder in islice(sizes.items(), 2))
        message = f"import {path[-1]!r}: {source} has different sizes: {each}"
        note = "the granularities of the GPUs differ"
        help = "write the size of the exported entry in bytes, as a multiple of the larger granularity"
        raise Refused(Diagnostic("MT604", message, where, labels=(label,), notes=(note,), help=help))
    return exports


def _require_seen(scope: Scope, path: Path, kind: ExportKind, imported: Imported) -> None:
    """Raise `Refused` with MT606 for a GPU that is not visible, unless objects can be on any GPU (fact 43)."""
    hidden = next((each for each in dict.fromkeys(imported.locations) if not scope.devices.sees(each)), None)
    if hidden and (note := kind.refusals.unseen):
        raise Refused(scope.devices.unseen(str(hidden), hidden, path, notes=(note,)))


def _distributed(exports: Sequence[ExportGroup], nodes: Sequence[str | None]) -> tuple[Location, ...]:
    """Locations of imported objects in the order of the holders, shortened to one period if they repeat.

    `nodes` are those of the holders, None for that of the importing process.
    """
    pairs = zip(exports, nodes, strict=True)
    rounds = [tuple(each.on(node) for each in export.locations) for export, node in pairs]
    each = exports[0].count
    if len(rounds) == 1 or (len(set(rounds)) == 1 and each % len(rounds[0]) == 0):
        return rounds[0]
    return tuple(chain.from_iterable(islice(cycle(found), each) for found in rounds))


def _require_equal(scope: Scope, entry: Import, group: Group, export: ExportGroup) -> None:
    """Raise `Refused` for an import that declares other properties than its sibling exports; all are optional."""
    path, kind = group.path, export.exporter
    refuse_granules(path, entry, kind)
    if entry.parts:
        message = f"import {path[-1]!r} declares parts, but the parts of {entry.source} are known"
        help = "omit 'parts': it is taken from the export"
        raise Refused(Diagnostic("MT604", message, (*path, "parts"), help=help))
    key = next((key for key in entry.declared if key in LOCATIONS and key in kind.import_keys.required), "")
    names = entry.locations(key) if key else []
    locations, wrong = collected(attempt(scope.devices.resolve_all, names, path, key, anywhere=True))
    refuse([*wrong, *_differences(entry, group, export, locations or ())])


def _differences(
    entry: Import, group: Group, export: ExportGroup, locations: Sequence[Location]
) -> Iterator[Diagnostic]:
    """Yield MT604 for each declared property that is not that of the export; `locations` are the declared ones."""

    def differs(key: str, declared: object, actual: str) -> Diagnostic:
        message = f"import {group.name!r} declares {key} {declared}, but {entry.source} {actual}"
        label = Label("exported here", export.path, "key")
        help = f"omit {key!r}: it is taken from the export"
        return Diagnostic("MT604", message, (*group.path, key), labels=(label,), help=help)

    keys, article = export.exporter.import_keys.required, export.exporter.words.article
    if entry.via and export.via not in entry.transports:
        yield differs("via", entry.via, f"is exported via {export.via}")
    number = largest_count(group)
    if entry.count and (entry.number, entry.lent) != (number, group.growing):
        lent = f"lends up to {plural(number, group.noun)}"
        yield differs("count", f"{entry.number:,}", lent if group.growing else f"is {plural(number, 'handle')}")
    for key in entry.declared:
        amount = entry.amount([key])
        if key not in keys:
            written = amount or ", ".join(map(str, entry.locations(key)[:_LISTED]))
            yield differs(key, written, f"is {article}, which has a {' and a '.join(keys)}, not a {key}")
        elif key in LOCATIONS and locations and _on_other_locations(locations, group):
            yield differs(key, _listed(locations), f"is on {_listed(group.locations)}")
        elif amount and not has_size(amount, group, export.group):
            yield differs(key, amount, f"has {exact(group.size)}{' each' * group.counted}")


def _on_other_locations(locations: Sequence[Location], group: Group) -> bool:
    """Return true if a round-robin distribution over `locations` differs from that of a group."""
    actual = group.locations
    period = min(group.count, max(len(locations) * len(actual), 1))
    return any(one != other for one, other in islice(zip(cycle(locations), cycle(actual), strict=False), period))


def _listed(locations: Sequence[Location]) -> str:
    return ", ".join(map(str, locations[:_LISTED])) + " …" * (len(locations) > _LISTED)


(CROSSING,) = ACROSS.words
"""Transport whose handles are valid on other nodes, those of the same clique (fact 88)."""


def crosses(importer: Spec, order: Sequence[str] | None, exporter: Spec) -> bool:
    """Return true if an instance of a process imports from an instance of another one that is on another node."""
    if OWN_NODE in (order or ()):
        return False
    count = exporter.instances or 1
    if order is None or count != importer.instances:
        return len({*importer.nodes, *exporter.nodes}) > 1
    return any(
        rank(exporter, other).node != rank(importer, index).node
        for index in range(count)
        for other in in_order(order, index, range(count))
    )


def elsewhere(scope: Scope, sibling: Sibling) -> list[tuple[str, Scope]]:
    """Label and scope of the known exporting instances on other nodes than the importing process."""
    known = [] if scope.node is None else sibling.instances
    return [(label, other) for label, other in known if other.node not in (scope.node, None)]


def require_crossing(scope: Scope, path: Path, sibling: Sibling, export: ExportGroup) -> None:
    """Raise `Refused` with MT613 for an import from another node by handles of one node.

    It is MT614 if fabric is not known to work. `path` is that of the source of the import. The diagnostics of all
    instances of a process are equal.
    """
    crossing = elsewhere(scope, sibling)
    if crossing and export.via != CROSSING:
        raise Refused(_not_carried(scope, path, sibling, export))
    own = scope.siblings.processes.get(scope.spec.name)
    importers = [each for _, each in own.instances] if crossing and own else [scope]
    if why := _unconnected([(each, other) for each in importers for _, other in elsewhere(each, sibling)]):
        note = "fabric handles are valid on nodes of the same clique of one cluster only (fact 88)"
        help = "record each node with 'memtopo probe --identify -o FILE', and name it: --machine NODE=FILE"
        label = Label("exported here", export.path, "key")
        message = f"import {path[-2]!r}: {why}"
        raise Refused(Diagnostic("MT614", message, path, labels=(label,), notes=(note,), help=help))


def _not_carried(scope: Scope, path: Path, sibling: Sibling, export: ExportGroup) -> Diagnostic:
    """Return MT613 for handles that are of one node."""
    own = scope.spec.path == sibling.spec.path
    processes = [sibling.spec] if own else [sibling.spec, scope.spec]
    where = [
        f"process {each.name!r} is on node{'s' * (len(each.nodes) > 1)} {' and '.join(each.nodes)}"
        for each in processes
    ]
    what = "handles of legacy IPC" if export.via == "ipc" else "file descriptors"
    message = f"import {path[-2]!r}: {' and '.join(where)}, but {what} are valid only on one node"
    label = Label(f"exported via {export.via} here", (*export.path, "via"))
    help = f"write 'via: {CROSSING}', and 'handles: {CROSSING}' for {export.group.name!r}"
    if CROSSING not in export.exporter.transports:
        help = f"share {export.exporter.words.plural} within a node only, or chunks via {CROSSING}"
    help += (
        ", or 'order: own-node' for imports only from the same node" if own else ", or keep both processes on one node"
    )
    choice = sibling.instances[0][1].choices.get((*export.path, "via"))
    notes = (choice.text,) if choice else ()
    return Diagnostic("MT613", message, path, labels=(label,), notes=notes, help=help)


def _unconnected(pairs: Iterable[tuple[Scope, Scope]]) -> str | None:
    """Reason why fabric handles are not known to work between importers and exporters on other nodes; None if they do.

    One for all of them: of the first pair that failed, else all nodes of unknown cliques, else of different ones.
    """
    # an export that does not work is reported where it is made
    known = {(str(one.node), str(two.node)): (one, two) for one, two in pairs if not _failed(two)}
    scopes = [known[nodes] for nodes in sorted(known)]
    for one, two in scopes:
        if location := _failed(one):
            return f"{_between((one, two))} does not work: it failed in a trial on {location.on(one.node)}"
    if unknown := [pair for pair in scopes if any(each.machine.clique is None for each in pair)]:
        every = [each for pair in unknown for each in pair]
        nodes = {str(each.node) for each in every if each.machine.clique is None}
        return f"{_between(every)} is not known to work: no clique is recorded of {enumerated(sorted(nodes), 'and')}"
    apart = [each for pair in scopes if not connected(pair[0].machine, pair[1].machine) for each in pair]
    return f"{_between(apart)} does not work: they belong to different cliques" if apart else None


def _between(scopes: Iterable[Scope]) -> str:
    return f"fabric between {enumerated(sorted({str(each.node) for each in scopes}), 'and')}"


def _failed(scope: Scope) -> Location | None:
    """Return a GPU of a process's node where fabric handles failed in a trial."""
    gpus = all_gpus(scope.machine)
    return next((each for each in gpus if scope.machine.trial(each, CROSSING).works is False), None)


def connected(one: Machine, other: Machine) -> bool:
    """Return true if two machines are of the same clique of one cluster, as far as their records have it."""
    return one.clique is not None and one.clique == other.clique


IMPORTS = Imports()
