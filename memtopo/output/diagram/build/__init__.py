"""From a geometry to its picture. Pure, and linear in what the spec writes: runs are never expanded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from memtopo.common.collector import collector_paused
from memtopo.geometry import Geometry
from memtopo.machine import Machine
from memtopo.output.diagram.build.flows import exports, flows
from memtopo.output.diagram.build.memory import Owner, memory
from memtopo.output.diagram.build.names import Marks, entry
from memtopo.output.diagram.build.ranges import ranges
from memtopo.output.diagram.build.resources import things
from memtopo.output.diagram.model import Diagram, ProcessDiagram

__all__ = ["build_diagram"]


def build_diagram(geometry: Geometry, machine: Machine) -> Diagram:
    """The picture of a geometry that has passed the rules of this machine."""
    marks = Marks(geometry.members)
    with collector_paused():
        if geometry.processes:
            return _together(geometry, machine, marks)
        own = _alone("", geometry, machine, marks)
        return Diagram(own.ranges, own.memory, own.things, own.exports, flows=tuple(flows({"": geometry}, {"": ""})))


def _alone(process: str, geometry: Geometry, machine: Machine, marks: Marks) -> Diagram:
    """One process, without what it takes from others."""
    return Diagram(
        ranges=tuple(ranges(geometry, process, marks)),
        memory=tuple(memory([Owner(process, geometry)], machine, marks)),
        things=tuple(things(geometry, process, marks)),
        exports=tuple(exports(geometry, process, marks)),
    )


def _together(geometry: Geometry, machine: Machine, marks: Marks) -> Diagram:
    groups = list(alike(geometry.processes))
    firsts = {label: group.labels[0] for group in groups for label in group.labels}
    shown = tuple(
        ProcessDiagram(
            first=group.labels[0],
            last=group.labels[-1],
            count=len(group.labels),
            step=group.step,
            picture=_alone(group.labels[0], group.geometry, machine, marks),
            path=group.geometry.path,
        )
        for group in groups
    )
    owners = [Owner(group.labels[0], group.geometry, len(group.labels)) for group in groups]
    whole = tuple(memory(owners, machine, marks))
    return Diagram((), whole, processes=shown, flows=tuple(flows(geometry.processes, firsts)))


class Alike(NamedTuple):
    """Processes of one entry by their labels, each `step` further on than the one before."""

    labels: Sequence[str]
    step: int
    geometry: Geometry


def alike(members: Mapping[str, Geometry]) -> Iterator[Alike]:
    """All processes, in the order of the first of each kind."""
    for _, labels in groupby(members, key=entry):
        yield from _of_entry(list(labels), members)


def _of_entry(labels: Sequence[str], members: Mapping[str, Geometry]) -> Iterator[Alike]:
    turns: dict[int, list[int]] = {}
    for turn, label in enumerate(labels):
        turns.setdefault(id(members[label]), []).append(turn)
    steps = {key: _step(found) for key, found in turns.items()}
    if all(steps.values()):
        for key, found in turns.items():
            yield Alike([labels[turn] for turn in found], steps[key], members[labels[found[0]]])
        return
    for _, neighbours in groupby(labels, key=lambda label: id(members[label])):
        found_labels = list(neighbours)
        yield Alike(found_labels, 1, members[found_labels[0]])


def _step(turns: Sequence[int]) -> int:
    """How far apart turns are, where all are equally so; else 0."""
    steps = {after - before for before, after in pairwise(turns)}
    return 0 if len(steps) > 1 else steps.pop() if steps else 1
