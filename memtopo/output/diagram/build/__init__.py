"""The diagram of a geometry. Pure, and linear in the size of the spec: groups of equal chunks are never expanded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise

from msgspec.structs import replace

from memtopo.common.units import by_key
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
    drawn = tuple(ranges(owner, marks))  # first, since they join marks
    own = tuple(memory([replace(owner, processes=1)], machines, marks))
    return Diagram(drawn, own, tuple(resources(owner, marks)), tuple(exports(owner, marks)), flows=tuple(taken))


def _multi_process(geometry: Geometry, machines: Machines, marks: Marks) -> Diagram:
    members = geometry.processes
    groups = list(_process_groups(members))
    firsts = {label: labels[0] for labels, _ in groups for label in labels}
    node_of = {label: node for node, labels in geometry.nodes.items() for label in labels}
    owners = [Owner(labels[0], members[labels[0]], len(labels), node_of.get(labels[0])) for labels, _ in groups]
    processes = tuple(
        ProcessDiagram(
            first=labels[0],
            last=labels[-1],
            count=len(labels),
            step=step,
            picture=_process(owner, machines, marks),
            path=owner.geometry.path,
            node=owner.node or "",
        )
        for (labels, step), owner in zip(groups, owners, strict=True)
    )
    total = tuple(memory(owners, machines, marks))
    return Diagram((), total, processes=processes, flows=tuple(flows(members, firsts)))


def _process_groups(members: Mapping[str, Geometry]) -> Iterator[tuple[Sequence[str], int]]:
    """Processes of one entry with the same geometry, each label so many after the one before, by the first of a group.

    One group for each geometry if its processes are at equal distances, otherwise for equal neighbours.
    """
    for _, entry in groupby(members, key=process_entry):
        labels = list(entry)
        equal = by_key((id(members[label]), index) for index, label in enumerate(labels))
        steps = [{after - before for before, after in pairwise(found)} or {1} for found in equal.values()]
        if all(len(each) == 1 for each in steps):
            for found, (step,) in zip(equal.values(), steps, strict=True):
                yield [labels[index] for index in found], step
        else:
            for _, neighbours in groupby(labels, key=lambda label: id(members[label])):
                yield list(neighbours), 1


def resources(owner: Owner, marks: Marks) -> Iterator[Resource]:
    """The resources of a process by kind, those created here before imports."""
    for kind in KINDS:
        if not kind.words.drawn:
            continue
        for group in owner.geometry.of(kind.group).values():
            found = _resource(kind.words.drawn, group, owner, marks)
            if isinstance(group, BindGroup):
                marked = tuple(dict.fromkeys(marks.mark(owner.process, each.chunk) for each in group.bindings))
                found = replace(found, target=group.object.name, bound=marked)
            yield found


def _resource(kind: str, group: Group, owner: Owner, marks: Marks) -> Resource:
    mark = marks.mark(owner.process, group) if group.memory or group.shares() else ""
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
            mark=marks.mark(owner.process, export.group) if export.group.memory else "",
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
    imports = (
        (label, group, group.origin)
        for label, geometry in members.items()
        if firsts[label] == label
        for group in geometry.every
        if group.origin
    )
    for label, group, origin in imports:
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
