"""The diagram of a geometry. Pure, and linear in the size of the spec: groups of equal chunks are never expanded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice, pairwise
from typing import NamedTuple

from memtopo.geometry import Geometry
from memtopo.geometry.diagram import Diagram, HandleFlow, ProcessDiagram
from memtopo.machine import Machines
from memtopo.output.diagram.build.memory import Owner, memory
from memtopo.output.diagram.build.names import Marks, process_entry
from memtopo.output.diagram.build.nodes import on_node
from memtopo.output.diagram.build.ranges import ranges
from memtopo.output.diagram.build.resources import exports, flows, resources

__all__ = ["build_diagram"]

MOST_CHOICES = 8
"""Choices among alternatives that a drawing shows."""


class ProcessGroup(NamedTuple):
    """Processes of one entry with the same geometry, each label `step` after the previous one."""

    labels: Sequence[str]
    step: int
    geometry: Geometry


def build_diagram(geometry: Geometry, machines: Machines) -> Diagram:
    """The diagram of a geometry without errors on this machine, or on the machines of its nodes."""
    marks = Marks(geometry.members)
    if geometry.processes:
        return replace(_multi_process(geometry, machines, marks), choices=tuple(_choices(geometry)))
    single = _process(Owner("", geometry), machines, marks, tuple(flows({"": geometry}, {"": ""})))
    return replace(single, choices=tuple(_choices(geometry)))


def _choices(geometry: Geometry) -> Iterator[str]:
    """Lines of the first choices, once for all instances of a process."""
    found: dict[str, None] = {}
    for label, member in geometry.members.items():
        process = f"{process_entry(label)}: " if label else ""
        found |= dict.fromkeys(f"{process}{each.text}" for each in member.choices)
    yield from islice(found, MOST_CHOICES)
    if (more := len(found) - MOST_CHOICES) > 0:
        yield f"… and {more:,} more choices"


def _process(owner: Owner, machines: Machines, marks: Marks, taken: Sequence[HandleFlow] = ()) -> Diagram:
    """The diagram of one process."""
    process, geometry = owner.process, owner.geometry
    found = Diagram(
        ranges=tuple(ranges(geometry, process, marks)),
        memory=tuple(memory([owner._replace(processes=1)], machines, marks)),
        things=tuple(resources(geometry, process, marks)),
        exports=tuple(exports(geometry, process, marks)),
        flows=tuple(taken),
    )
    return on_node(found, owner.node) if owner.node else found


def _multi_process(geometry: Geometry, machines: Machines, marks: Marks) -> Diagram:
    groups = list(_process_groups(geometry.processes))
    firsts = {label: group.labels[0] for group in groups for label in group.labels}
    node_of = {label: node for node, labels in geometry.nodes.items() for label in labels}
    owners = [Owner(each.labels[0], each.geometry, len(each.labels), node_of.get(each.labels[0])) for each in groups]
    processes = tuple(
        ProcessDiagram(
            first=group.labels[0],
            last=group.labels[-1],
            count=len(group.labels),
            step=group.step,
            picture=_process(owner, machines, marks),
            path=group.geometry.path,
            node=owner.node or "",
        )
        for group, owner in zip(groups, owners, strict=True)
    )
    total = tuple(memory(owners, machines, marks))
    return Diagram((), total, processes=processes, flows=tuple(flows(geometry.processes, firsts)))


def _process_groups(members: Mapping[str, Geometry]) -> Iterator[ProcessGroup]:
    """All processes, in the order of the first of each group."""
    for _, labels in groupby(members, key=process_entry):
        yield from _groups_of_entry(list(labels), members)


def _groups_of_entry(labels: Sequence[str], members: Mapping[str, Geometry]) -> Iterator[ProcessGroup]:
    """One group for each geometry if its processes are at equal distances, otherwise for equal neighbours."""
    indices: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        indices.setdefault(id(members[label]), []).append(index)
    steps = {key: _step(found) for key, found in indices.items()}
    if all(steps.values()):
        for key, found in indices.items():
            yield ProcessGroup([labels[index] for index in found], steps[key], members[labels[found[0]]])
        return
    for _, neighbours in groupby(labels, key=lambda label: id(members[label])):
        equal = list(neighbours)
        yield ProcessGroup(equal, 1, members[equal[0]])


def _step(indices: Sequence[int]) -> int:
    """The distance between indices if it is the same for all, otherwise 0."""
    steps = {after - before for before, after in pairwise(indices)}
    return 0 if len(steps) > 1 else steps.pop() if steps else 1
