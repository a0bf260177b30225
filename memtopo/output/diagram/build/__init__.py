"""The diagram of a geometry. Pure, and linear in the size of the spec: groups of equal chunks are never expanded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice, pairwise
from typing import NamedTuple

from memtopo.geometry import Geometry
from memtopo.geometry.diagram import Diagram, Export, HandleFlow, ProcessDiagram, Resource
from memtopo.geometry.groups import Group
from memtopo.kinds import KINDS
from memtopo.kinds.bindings import BindGroup
from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.external import ExternalObject
from memtopo.machine import Machines
from memtopo.output.diagram.build.memory import Marks, Owner, memory, process_entry, source
from memtopo.output.diagram.build.ranges import ranges

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
    return Diagram(
        ranges=tuple(ranges(owner, marks)),
        memory=tuple(memory([owner._replace(processes=1)], machines, marks)),
        things=tuple(resources(owner, marks)),
        exports=tuple(exports(owner, marks)),
        flows=tuple(taken),
    )


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


def resources(owner: Owner, marks: Marks) -> Iterator[Resource]:
    """The resources of a process by kind, those created here before imports."""
    for kind in KINDS:
        if not kind.drawn:
            continue
        for group in owner.geometry.of(kind.group).values():
            found = _resource(kind.drawn, group, owner, marks)
            if isinstance(group, BindGroup):
                marked = tuple(dict.fromkeys(marks.of(owner.process, each.chunk) for each in group.bindings))
                found = replace(found, target=group.object.name, bound=marked)
            yield found


def _resource(kind: str, group: Group, owner: Owner, marks: Marks) -> Resource:
    mark = marks.of(owner.process, group) if group.memory or group.shares() else ""
    return Resource(
        kind=kind,
        noun="" if group.noun == kind else group.noun,
        external=group.produced,
        name=group.name,
        mark=mark,
        count=group.count,
        bytes_each=group.size,
        locations=owner.names(group.locations),
        origin=source(group.origin),
        via=group.origin.via if group.origin and group.produced and group.memory else "",
        notes=tuple(group.details()),
        parts=tuple(
            Resource(kind="part", name=part.label, mark=mark, bytes_each=part.size, offset=part.offset, path=part.path)
            for part in (group.buffers if isinstance(group, ExternalObject) else ())
        ),
        path=group.path,
    )


def exports(owner: Owner, marks: Marks) -> Iterator[Export]:
    """The exports of a process."""
    for export in owner.geometry.of(ExportGroup).values():
        yield Export(
            name=export.name,
            kind=export.group.noun,
            mark=marks.of(owner.process, export.group) if export.group.memory else "",
            first=export.label(0),
            last=export.label(export.count - 1),
            via=export.via,
            count=export.count,
            bytes_each=export.size,
            path=export.path,
        )


def flows(members: Mapping[str, Geometry], firsts: Mapping[str, str]) -> Iterator[HandleFlow]:
    """The imports of each process, once for a group of equal ones.

    `firsts` has the label of the first process of its group for each process.
    """
    for label, geometry in members.items():
        if firsts[label] == label:
            for group in geometry.every:
                yield from _imports(label, group, firsts)


def _imports(label: str, group: Group, firsts: Mapping[str, str]) -> Iterator[HandleFlow]:
    origin = group.origin
    if origin is None:
        return
    sources = Counter(firsts[holder] if origin.siblings else holder for holder in origin.holders)
    for holder, processes in sources.items():
        yield HandleFlow(
            source=holder,
            export=origin.export,
            target=label,
            name=group.name,
            kind=group.offered_as or "",
            via=origin.via,
            count=origin.each,
            bytes_each=group.size,
            path=group.path,
            outside=not origin.siblings,
            processes=processes,
            external=group.produced,
        )
