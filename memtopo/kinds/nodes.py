"""Nodes of processes: the node of each instance, and what the names of nodes in a spec have to satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from memtopo.common.text import plural
from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.language import Document
from memtopo.language.entries import Spec
from memtopo.machine import Cluster, Machines


class NodeRank(NamedTuple):
    """Node of one instance of a process, and its number among the instances there, as LOCAL_RANK of torchrun."""

    node: str | None
    local: int


def rank(process: Spec, index: int) -> NodeRank:
    """Rank of an instance: the nodes of a process have equal blocks of instances, in order."""
    if not process.nodes:
        return NodeRank(None, index)
    block = max(1, (process.instances or 1) // len(process.nodes))
    return NodeRank(process.nodes[min(index // block, len(process.nodes) - 1)], index % block)


def nodes_of(spec: Spec) -> tuple[str, ...]:
    """Nodes of all processes of a spec, in the order in which it names them first."""
    return tuple(dict.fromkeys(chain.from_iterable(process.nodes for process in spec.processes.values())))


def names_nodes(document: Document) -> tuple[str, ...]:
    """Nodes that the processes of a document name, correctly or not."""
    processes = document.root.get("processes")
    found: dict[str, None] = {}
    for process in processes.values() if isinstance(processes, dict) else ():
        if isinstance(process, dict):
            for value in (process.get(key, []) for key in ("node", "nodes")):
                found |= dict.fromkeys(map(str, value if isinstance(value, list) else [value]))
    return tuple(found)


def check_nodes(spec: Spec, machines: Machines) -> Iterator[Diagnostic]:
    """Yield MT611, MT612 and MT616 for nodes that processes cannot have, MT615 for nodes without a machine.

    With any of them, it is not known what each process has.
    """
    nodes = nodes_of(spec) if spec.processes else ()
    yield from _without_node(spec) if nodes else ()
    yield from _held(spec) if nodes else ()
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


def _held(spec: Spec) -> Iterator[Diagnostic]:
    """Yield MT616 for processes that are held in a layout of several nodes."""
    for name in sorted(spec.held_processes):
        process = spec.processes[name]
        message = f"process {name!r} is held, and the processes of a layout of several nodes are built together"
        yield Diagnostic("MT616", message, process.at("held"), help="omit 'held', or the nodes")


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
