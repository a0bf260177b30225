"""From a geometry to its picture. Pure, and linear in what the spec writes: runs are never expanded."""

from __future__ import annotations

from memtopo.common.collector import collector_paused
from memtopo.geometry import Geometry
from memtopo.machine import Machine
from memtopo.output.diagram.build.alike import alike
from memtopo.output.diagram.build.handing import flows
from memtopo.output.diagram.build.marks import Marks
from memtopo.output.diagram.build.memory import Owner, memory
from memtopo.output.diagram.build.ranges import ranges
from memtopo.output.diagram.build.things import exports, things
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
