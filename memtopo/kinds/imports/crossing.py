"""Imports from counted processes, in order, and from processes on other nodes, which fabric handles alone carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from memtopo.common.text import enumerated
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.types import Location
from memtopo.kinds.alternatives import ACROSS
from memtopo.kinds.device_names import all_gpus
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.kind import Scope, Sibling
from memtopo.kinds.nodes import rank
from memtopo.kinds.resolution import Refused
from memtopo.language.entries import Spec
from memtopo.language.fields import OWN_FIRST, OWN_NODE, WHOLE_ORDERS, ProcessOrder
from memtopo.machine import Machine

T = TypeVar("T")

_DISTANCES = {"own": 0, "next": 1, "previous": -1}
"""Distance in a ring to the process that a word of an order names."""


def _naming_each_once(order: list[str]) -> list[str]:
    if len(order) > 1 and (whole := next((each for each in WHOLE_ORDERS if each in order), None)):
        message = f"{whole!r} is an order of all processes, and cannot be part of a list"
        raise InvalidValue("MT103", message, help=f"write 'order: {whole}', or own, next and previous")
    if repeated := next((each for each in order if order.count(each) > 1), None):
        raise InvalidValue("MT204", f"{repeated!r} is listed twice", help="list it once")
    return order


Order = Annotated[ProcessOrder, AfterValidator(_naming_each_once)]


def in_order(order: Sequence[str] | None, index: int, instances: Sequence[T]) -> tuple[T, ...]:
    """Return the instances of a process that an import is from; `index` is the number of the importing process.

    For `own-node`, the instances are those of the node.
    """
    if order is None or OWN_NODE in order:
        return tuple(instances)
    count = len(instances)
    distances = range(count) if OWN_FIRST in order else [_DISTANCES[each] for each in order]
    return tuple(instances[(index + distance) % count] for distance in distances)


def require_order(
    scope: Scope, path: Path, order: Sequence[str] | None, other: Spec, instances: Sequence[object]
) -> None:
    """Raise `Refused` with MT608 for an order of processes that do not have the same number of instances.

    It is refused for an import from the own node, too, where the other process has none of the `instances`.
    """
    own, where = scope.spec, (*path, "order")
    same = own.instances == other.instances is not None or own.countless or other.countless
    if order is None or same or (OWN_NODE in order and other.instances is not None):
        if instances or scope.node is None:
            return
        message = f"import {path[-1]!r} is from the own node, and process {other.path[-1]!r} is not on {scope.node!r}"
        label = Label("its nodes", other.at(other.node_key))
        help = "omit 'order', and export via fabric; or have both processes on the same nodes"
    elif uncounted := next((each for each in (own, other) if each.instances is None), None):
        message = f"import {path[-1]!r} has an order, and process {uncounted.path[-1]!r} is not counted"
        label = Label("the process", uncounted.path, "key")
        help = "omit 'order', and the handles are in the order of the processes"
    else:
        message = f"import {path[-1]!r} has an order, and {own.path[-1]!r} and {other.path[-1]!r} have different counts"
        label = Label(f"{other.instances} of them", other.at("count"))
        help = f"write 'count: {other.instances}' for {own.path[-1]!r}, or omit 'order', "
        help += "and the handles are in the order of the processes"
    raise Refused(Diagnostic("MT608", message, where, labels=(label,), help=help))


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
    where = (f"process {each.name!r} is on {_listed(each)}" for each in processes)
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


def _listed(process: Spec) -> str:
    several = "nodes " if len(process.nodes) > 1 else "node "
    return several + " and ".join(process.nodes)


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
