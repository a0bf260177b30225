"""Imports from processes on other nodes, which fabric handles alone carry."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location
from memtopo.kinds.alternatives import ACROSS
from memtopo.kinds.device_sets import all_gpus
from memtopo.kinds.exports.groups import ExportGroup
from memtopo.kinds.imports.order import in_order
from memtopo.kinds.kind import Scope, Sibling
from memtopo.kinds.nodes import rank
from memtopo.language.entries import Spec
from memtopo.language.fields import OWN_NODE
from memtopo.machine import Machine

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
    """Label and scope of the exporting instances on other nodes than the importing process, of those that are known."""
    known = [] if scope.node is None else sibling.instances
    return [(label, other) for label, other in known if other.node not in (scope.node, None)]


def crossing_fault(scope: Scope, path: Path, sibling: Sibling, export: ExportGroup) -> Diagnostic | None:
    """Return MT613 for an import from another node by handles of one node, MT614 if fabric is not known to work.

    `path` is that of the source of the import. The diagnostics of all instances of a process are equal.
    """
    crossing = elsewhere(scope, sibling)
    if crossing and export.via != CROSSING:
        return _not_carried(scope, path, sibling, export)
    why = next(filter(None, (_unconnected(scope, other) for _, other in crossing)), None)
    if why is None:
        return None
    note = "fabric handles are valid on nodes of the same clique of one cluster only (fact 88)"
    help = "record each node with 'memtopo probe --identify -o FILE', and name it: --machine NODE=FILE"
    label = Label("exported here", export.path, "key")
    return Diagnostic("MT614", f"import {path[-2]!r}: {why}", path, labels=(label,), notes=(note,), help=help)


def _not_carried(scope: Scope, path: Path, sibling: Sibling, export: ExportGroup) -> Diagnostic:
    """Return MT613 for handles that are of one node."""
    own = scope.spec.path == sibling.spec.path
    processes = [sibling.spec] if own else [sibling.spec, scope.spec]
    where = (f"process {each.name!r} is on {_listed(each)}" for each in processes)
    what = "handles of legacy IPC" if export.via == "ipc" else "file descriptors"
    message = f"import {path[-2]!r}: {' and '.join(where)}, and {what} are of one node"
    label = Label(f"exported via {export.via} here", (*export.path, "via"))
    help = f"write 'via: {CROSSING}', and 'handles: {CROSSING}' for {export.group.name!r}"
    if CROSSING not in export.exporter.transports:
        help = f"share {export.exporter.plural} within a node only, or chunks via {CROSSING}"
    help += ", or 'order: own-node' for those of the same node alone" if own else ", or keep both processes on one node"
    choice = sibling.instances[0][1].choices.get((*export.path, "via"))
    notes = (choice.text,) if choice else ()
    return Diagnostic("MT613", message, path, labels=(label,), notes=notes, help=help)


def _listed(process: Spec) -> str:
    several = "nodes " if len(process.nodes) > 1 else "node "
    return several + " and ".join(process.nodes)


def _unconnected(scope: Scope, other: Scope) -> str | None:
    """Reason why fabric handles are not known to work between two nodes; None if they are."""
    one, two = sorted((scope, other), key=lambda each: str(each.node))
    between = f"fabric between {one.node} and {two.node}"
    if _failed(other):
        return None  # an export that does not work is reported where it is made
    if location := _failed(scope):
        return f"{between} does not work: it failed in a trial on {location.on(scope.node)}"
    if unknown := [str(each.node) for each in (one, two) if each.machine.clique is None]:
        return f"{between} is not known to work: no clique is recorded of {' and '.join(unknown)}"
    return None if connected(one.machine, two.machine) else f"{between} does not work: they are of different cliques"


def _failed(scope: Scope) -> Location | None:
    """Return a GPU of a process's node where fabric handles failed in a trial."""
    gpus = all_gpus(scope.machine)
    return next((each for each in gpus if scope.machine.trial(each, CROSSING).works is False), None)


def connected(one: Machine, other: Machine) -> bool:
    """Return true if two machines are of the same clique of one cluster, as far as their records have it."""
    return one.clique is not None and one.clique == other.clique
