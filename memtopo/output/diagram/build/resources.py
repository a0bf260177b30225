"""Resources of a process that are in no range, its exports, and the flows of handles between processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from memtopo.geometry import Geometry
from memtopo.geometry.diagram import Export, HandleFlow, Resource
from memtopo.geometry.groups import Group
from memtopo.kinds import KINDS
from memtopo.kinds.bindings import BindGroup
from memtopo.kinds.exports.groups import ExportGroup
from memtopo.kinds.external import ExternalObject
from memtopo.output.diagram.build.names import Marks, location_names, source


def resources(geometry: Geometry, process: str, marks: Marks) -> Iterator[Resource]:
    """The resources of a process by kind, those created here before imports."""
    for kind in KINDS:
        if kind.drawn:
            for group in geometry.of(kind.group).values():
                found = _resource(kind.drawn, group, marks.of(process, group) if group.memory or group.shares() else "")
                if isinstance(group, BindGroup):
                    marked = tuple(dict.fromkeys(marks.of(process, each.chunk) for each in group.bindings))
                    found = replace(found, target=group.object.name, bound=marked)
                yield found


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
            for part in (group.buffers if isinstance(group, ExternalObject) else ())
        ),
        path=group.path,
    )


def exports(geometry: Geometry, process: str, marks: Marks) -> Iterator[Export]:
    """The exports of a process."""
    for export in geometry.of(ExportGroup).values():
        yield Export(
            name=export.name,
            kind=export.kind,
            mark=marks.of(process, export.group) if export.group.memory else "",
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
