"""Resolution of a spec on a machine to its geometry. Entries with errors are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memtopo.common.units import summed
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.groups import ChunkGroup
from memtopo.geometry.model import Geometry
from memtopo.geometry.sizing import MemoryBudgets, memory_budgets
from memtopo.kinds import KINDS
from memtopo.kinds.device_names import assigned
from memtopo.kinds.exports import EXPORTS
from memtopo.kinds.imports import crossing_exports, depends_on_number
from memtopo.kinds.kind import ResolutionStage, Scope, Sibling, Siblings
from memtopo.kinds.nodes import check_nodes, nodes_of, rank
from memtopo.language.entries import Spec
from memtopo.language.scalars import LARGEST_COUNT
from memtopo.machine import Machines


class ResolvedLayout(NamedTuple):
    """Geometry of the entries without errors, and the diagnostics of the others."""

    geometry: Geometry
    diagnostics: list[Diagnostic]


def lay_out(spec: Spec, machines: Machines, *, joining: bool = False) -> ResolvedLayout:
    """Resolve names, granularities, offsets and access of a spec on the machines of its nodes, or on its one machine.

    Groups are not expanded. Nothing is resolved if it is not known which processes are on which node.

    A spec with shares of memory is resolved twice: what they are shares of is known after the first time. For processes
    that are `joining` a held layout, imports from its processes are from outside.
    """
    if wrong := list(check_nodes(spec, machines)):
        return ResolvedLayout(Geometry(spec.name, unresolved=spec.left_out | {("processes", "")}), wrong)
    layout = spec.name if joining else ""
    found = _lay_out(spec, machines, layout, None)
    members = found.geometry.members.values()
    if not any(group.share for member in members for group in member.instances_of(ChunkGroup)):
        return found
    return _lay_out(spec, machines, layout, memory_budgets(found.geometry, machines))


def _lay_out(spec: Spec, machines: Machines, layout: str, budgets: MemoryBudgets | None) -> ResolvedLayout:
    if not spec.processes:
        scope = Scope(spec, machines, KINDS, budgets=budgets)
        diagnostics = messages.first([*_resolve_own(scope), *_resolve_dependent(scope)])
        return ResolvedLayout(scope.geometry(), diagnostics)
    crossing = dict(crossing_exports(spec)) if len(nodes_of(spec)) > 1 else {}
    alone = Siblings(spec, crossing=crossing, layout=layout)
    scopes = dict(_scopes(spec, machines, alone, budgets))
    instances = {
        name: Sibling(process, tuple((label, scope) for label, scope in scopes.items() if scope.spec is process))
        for name, process in spec.processes.items()
    }
    siblings = alone._replace(processes=instances)
    distinct = list({id(scope): scope for scope in scopes.values()}.values())
    # Imports require the exports of all processes.
    found = {id(scope): list(_resolve_own(scope)) for scope in distinct}
    for scope in distinct:
        scope.siblings = siblings
        found[id(scope)] = messages.first([*found[id(scope)], *_resolve_dependent(scope)])
    geometries = {id(scope): scope.geometry() for scope in distinct}
    # Instances of a counted process repeat their diagnostics.
    diagnostics = list(dict.fromkeys(each for scope in distinct for each in found[id(scope)]))
    diagnostics += _joint_limits(list(scopes.values()))
    members = {label: geometries[id(scope)] for label, scope in scopes.items()}
    nodes = {node: tuple(label for label, each in scopes.items() if each.node == node) for node in nodes_of(spec)}
    held = frozenset(label for label, scope in scopes.items() if scope.spec.held)
    geometry = Geometry(spec.name, unresolved=spec.left_out, processes=members, nodes=nodes, held=held)
    return ResolvedLayout(geometry, messages.first(diagnostics))


def _scopes(
    spec: Spec, machines: Machines, siblings: Siblings, budgets: MemoryBudgets | None
) -> Iterator[tuple[str, Scope]]:
    """Scope of each process by label.

    Processes of a counted process on one node with the same devices share one, unless an entry depends on their
    numbers.
    """
    for name, process in spec.processes.items():
        shared: dict[tuple[object, ...], Scope] = {}
        numbered = depends_on_number(process)
        for index in range(process.instances or 1):
            node, local = rank(process, index)
            machine = machines.of(node)
            devices = (assigned(values, machine, local) for values in process.section("devices").values())
            like = (node, *devices, *([index] if numbered else ()))
            if like not in shared:
                shared[like] = Scope(process, machines, KINDS, index, siblings, budgets)
            yield (f"{name}.{index}" if process.instances else name), shared[like]


def _resolve_own(scope: Scope) -> Iterator[Diagnostic]:
    """Resolve devices and entries that do not depend on other processes."""
    yield from scope.devices.declare()
    yield from _resolve(scope, [stage for stage in ResolutionStage if stage <= ResolutionStage.EXPORTED])


def _resolve_dependent(scope: Scope) -> Iterator[Diagnostic]:
    """Resolve imports, then ranges, mappings and access."""
    yield from _resolve(scope, [stage for stage in ResolutionStage if stage > ResolutionStage.EXPORTED])
    if not scope.unresolved:
        yield from scope.devices.unused()


_BY_STAGE = {stage: tuple(kind for kind in KINDS if kind.stage is stage) for stage in ResolutionStage}


def _resolve(scope: Scope, stages: Iterable[ResolutionStage]) -> Iterator[Diagnostic]:
    for stage in stages:
        for kind in _BY_STAGE[stage]:
            yield from kind.resolve(scope)
        if stage is ResolutionStage.MAPPED:
            yield from EXPORTS.resolve(scope, dma_bufs=True)


def _joint_limits(scopes: Sequence[Scope]) -> Iterator[Diagnostic]:
    """Yield MT109 for limits that no process exceeds alone, but all of them do together."""
    plurals = {kind.section: kind.words.plural for kind in KINDS}
    for section, total in summed(scope.totals for scope in scopes).items():
        if total > LARGEST_COUNT and all(scope.totals.get(section, 0) <= LARGEST_COUNT for scope in scopes):
            message = f"{total:,} {plurals[section]} in all processes are more than the {LARGEST_COUNT:,}"
            yield Diagnostic("MT109", f"{message} allowed in one spec", ("processes",), "key")
