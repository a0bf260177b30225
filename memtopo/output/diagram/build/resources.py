"""Resources of a process that are in no range."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group
from memtopo.kinds import KINDS
from memtopo.output.diagram.build.names import Marks, location_names, source
from memtopo.output.diagram.model import Resource


def resources(geometry: Geometry, process: str, marks: Marks) -> Iterator[Resource]:
    """The resources of a process by kind, those created here before imports."""
    for kind in KINDS:
        if kind.drawn:
            for group in geometry.of(kind.group).values():
                yield _resource(kind.drawn, group, marks.of(process, group) if group.memory else "")


def _resource(kind: str, group: Group, mark: str) -> Resource:
    return Resource(
        kind=kind,
        noun="" if group.noun == kind else group.noun,
        external=group.produced,
        name=group.name,
        mark=mark,
        count=group.count,
        bytes_each=group.size,
        locations=location_names(group.locations),
        origin=source(group.origin),
        via=group.origin.via if group.origin and group.produced and group.memory else "",
        notes=tuple(group.details()),
        parts=tuple(
            Resource(kind="part", name=part.label, mark=mark, bytes_each=part.size, offset=part.offset, path=part.path)
            for part in group.inner
        ),
        path=group.path,
    )
