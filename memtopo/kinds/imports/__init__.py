"""Imports: objects exported by other processes. The kinds of `EXPORTABLE` define how they are imported."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.text import enumerated
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.geometry.groups import Group
from memtopo.kinds.exports import EXPORTS
from memtopo.kinds.exports.entry import EXPORTABLE
from memtopo.kinds.imports.crossing import crosses, outside_order
from memtopo.kinds.imports.entry import Import, from_outside
from memtopo.kinds.imports.siblings import from_sibling, is_own
from memtopo.kinds.kind import Kind, Scope, Stage
from memtopo.kinds.resolution import Resolution
from memtopo.language.entries import Spec


class Imports(Kind):
    """Section `imports`."""

    section = "imports"
    description = (
        "Objects exported by other processes, used like "
        f"{enumerated((kind.plural for kind in EXPORTABLE.values()), 'and')}: w: {{from: server.w}}."
    )
    plural = "handles of imports"
    article = "an import"
    form = "w: {from: server.w}"
    entry = model = Import
    stage = Stage.IMPORTED

    def resolve_entry(self, scope: Scope, entry: Import, path: Path) -> Resolution[Group | None]:
        if not entry.source.sibling:
            if wrong := _named_like_process(scope, path, entry) or outside_order(path, entry.order, entry.source):
                yield wrong
                return None
            return (yield from from_outside(scope, path, entry))
        if {entry.source.holder, "", "<<"}.isdisjoint(scope.siblings.unread):
            return (yield from from_sibling(scope, path, entry))
        return None


def depends_on_number(process: Spec) -> bool:
    """Return true if an import has an order, or is of handles that the process itself cannot open."""
    exports = process.section(EXPORTS.section)
    imports = process.section(IMPORTS.section).values()
    own = (exports.get(each.source.export) for each in imports if is_own(process, each))
    kinds = (EXPORTABLE[key] for export in own if export for key, _ in export.what)
    return any(each.order for each in imports) or any(not kind.opens_own for kind in kinds)


def crossing_exports(spec: Spec) -> Iterator[tuple[tuple[str, str], str]]:
    """Exports, each as a process of the spec and a name, with the process that imports them on another node."""
    for name, process in spec.processes.items():
        for entry in process.section(IMPORTS.section).values():
            source, holder = entry.source, spec.processes.get(entry.source.holder)
            if source.sibling and holder and crosses(process, entry.order, holder):
                yield (source.holder, source.export), name


def _named_like_process(scope: Scope, path: Path, entry: Import) -> Diagnostic | None:
    """Return MT203 for a layout with the name of a process of the spec, which is probably intended."""
    holder, export = entry.source.holder, entry.source.export
    if holder not in scope.siblings.processes:
        return None
    message = f"import {path[-1]!r} is from a held layout {holder!r}, which is the name of a process of this spec"
    label = Label("the process", scope.siblings.processes[holder].spec.path, "key")
    help = f"write {holder}.{export} for the process, or choose another name for it"
    return Diagnostic("MT203", message, (*path, "from"), labels=(label,), help=help)


IMPORTS = Imports()
