"""Kinds of entries: one module for each section of a spec, with its fields, groups, steps and rules.

The engine iterates over `KINDS` and names no kind itself. To add a kind, add a module and list it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtopo.common.text import plural
from memtopo.common.units import summed
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.geometry.groups import ChunkGroup
from memtopo.geometry.model import Geometry, MemoryBudgets, memory_budgets
from memtopo.kinds.access import ACCESS
from memtopo.kinds.bindings import BINDINGS
from memtopo.kinds.chunks import CHUNKS
from memtopo.kinds.device_names import assigned
from memtopo.kinds.exports import EXPORTS
from memtopo.kinds.external import EXTERNAL
from memtopo.kinds.external.semaphores import SEMAPHORES
from memtopo.kinds.heaps import HEAPS
from memtopo.kinds.imports import IMPORTS, crossing_exports, depends_on_number
from memtopo.kinds.ipc import BUFFERS, EVENTS
from memtopo.kinds.kind import Kind, ResolutionStage, Scope, Sibling, Siblings, Words
from memtopo.kinds.managed import MANAGED
from memtopo.kinds.mappings import MAPPINGS
from memtopo.kinds.multicast import MULTICAST
from memtopo.kinds.pinned import PINNED_MEMORY
from memtopo.kinds.pools import POOLS
from memtopo.kinds.pools.allocations import ALLOCATIONS
from memtopo.kinds.ranges import RANGES
from memtopo.kinds.states import STATES
from memtopo.language.entries import Spec, nodes_of, rank
from memtopo.language.fields import Identities
from memtopo.language.scalars import LARGEST_COUNT
from memtopo.machine import Cluster, Machines

__all__ = ["DEVICES", "KINDS", "Kind"]


class Devices(Kind):
    """Section `devices`, which names locations and has no groups; `memtopo.kinds.device_names` resolves them."""

    section = "devices"
    description = "Names for GPUs, each an ordinal, a UUID (GPU-…) or a bus id. gpu0, host and host:0 are built in."
    words = Words("device", "devices")
    entry = Identities


DEVICES = Devices()

KINDS: tuple[Kind, ...] = (
    RANGES,
    CHUNKS,
    MAPPINGS,
    HEAPS,
    ACCESS,
    BUFFERS,
    EVENTS,
    POOLS,
    ALLOCATIONS,
    EXPORTS,
    IMPORTS,
    MULTICAST,
    BINDINGS,
    MANAGED,
    PINNED_MEMORY,
    EXTERNAL,
    SEMAPHORES,
    STATES,
)
"""All kinds, in the order of their steps within a phase.

If two entries have the same name, the error is reported for the entry of the later kind.
"""


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
    plurals = {kind.section: kind.words.plural for kind in KINDS}
    for section, total in summed(scope.totals for scope in scopes.values()).items():
        # Limits that no process exceeds alone, but all of them do together.
        if total > LARGEST_COUNT and all(each.totals.get(section, 0) <= LARGEST_COUNT for each in scopes.values()):
            message = f"{total:,} {plurals[section]} in all processes are more than the {LARGEST_COUNT:,}"
            diagnostics.append(Diagnostic("MT109", f"{message} allowed in one spec", ("processes",), "key"))
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


def check_nodes(spec: Spec, machines: Machines) -> Iterator[Diagnostic]:
    """Yield MT611, MT612 and MT616 for nodes that processes cannot have, MT615 for nodes without a machine.

    With any of them, it is not known what each process has.
    """
    nodes = nodes_of(spec) if spec.processes else ()
    if nodes:
        yield from _without_node(spec)
        for name in sorted(spec.held_processes):
            message = f"process {name!r} is held, and the processes of a layout of several nodes are built together"
            yield Diagnostic("MT616", message, spec.processes[name].at("held"), help="omit 'held', or the nodes")
    for process in spec.processes.values():
        yield from _undivided(process)
    if isinstance(machines, Cluster):
        yield from _without_machine(spec, machines)
        if unused := [node for node in machines.nodes if node not in nodes]:
            has = f"its nodes are {', '.join(nodes)}" if nodes else "it has no nodes"
            message = f"a machine is named for {', '.join(map(repr, unused))}, but the spec has no process there: {has}"
            help = "name one machine for the whole spec" if not nodes else "omit that machine, or correct its name"
            where = ("processes",) if spec.processes else ()
            yield Diagnostic("MT615", message, where, "key" if where else "value", help=help)


def _without_node(spec: Spec) -> Iterator[Diagnostic]:
    """Yield MT611 for processes without a node beside others that have one."""
    first = next(process for process in spec.processes.values() if process.nodes)
    for process in spec.processes.values():
        if not (process.nodes or {("node", ""), ("<<", "")} & process.left_out):  # or its keys have errors
            message = f"process {process.name!r} is on no node, and process {first.name!r} is on {first.nodes[0]!r}"
            label = Label("on a node", first.at(first.node_key))
            help = f"write 'node: {first.nodes[0]}', or the name of another node"
            yield Diagnostic("MT611", message, process.path, "key", labels=(label,), help=help)


def _undivided(process: Spec) -> Iterator[Diagnostic]:
    """Yield MT612 for instances that cannot be divided among the nodes in equal blocks."""
    number, count = len(process.nodes), process.instances
    if number < 2 or process.countless or (count and count % number == 0):  # noqa: PLR2004
        return
    where = process.at(process.node_key)
    if count is None:
        message = f"process {process.name!r} is on {number} nodes, and it is not counted"
        help = f"write 'count: {number}' for one on each node, or 'node: {process.nodes[0]}'"
        yield Diagnostic("MT612", message, where, help=help)
        return
    instances = f"{plural(count, 'instance')} of process {process.name!r}"
    message = f"{instances} cannot be divided among {number} nodes equally"
    near = [each for each in (count // number * number, -(-count // number) * number) if each]
    fewer = max((each for each in range(1, number) if count % each == 0), default=1)
    help = f"write 'count: {' or '.join(map(str, dict.fromkeys(near)))}', or {plural(fewer, 'node')}"
    yield Diagnostic("MT612", message, where, labels=(Label(f"{count} instances", process.at("count")),), help=help)


def _without_machine(spec: Spec, machines: Cluster) -> Iterator[Diagnostic]:
    """Yield MT615 for the first use of each node without a machine."""
    reported: set[str] = set()
    for process in spec.processes.values():
        for index, node in enumerate(process.nodes):
            if node not in machines.nodes and node not in reported:
                reported.add(node)
                several = process.node_key == "nodes" and len(process.nodes) > 1
                where = process.at("nodes", index) if several else process.at(process.node_key)
                message = f"no machine is named for node {node!r}, only for {', '.join(machines.nodes)}"
                yield Diagnostic("MT615", message, where, help=f"add --machine {node}=NAME; in Python, machine=")
