"""Exports of a process, and the flows of handles between processes and from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group
from memtopo.kinds.exports import ExportGroup
from memtopo.output.diagram.build.names import Marks
from memtopo.output.diagram.model import Export, HandleFlow


def exports(geometry: Geometry, process: str, marks: Marks) -> Iterator[Export]:
    """The exports of a process."""
    for export in geometry.of(ExportGroup).values():
        yield Export(
            name=export.name,
            kind=export.kind,
            mark=marks.of(process, export.group) if export.size else "",
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
    for source, processes in sources.items():
        yield HandleFlow(
            source=source,
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
