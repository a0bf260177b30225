"""Exports of a process, and the flows of handles between processes and from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from memtopo.geometry import EventGroup, ExternalObject, Geometry, ImportedSemaphore
from memtopo.geometry.groups import BufferGroup, Imported, Kind
from memtopo.output.diagram.build.names import Marks
from memtopo.output.diagram.model import Export, HandleFlow


def exports(geometry: Geometry, process: str, marks: Marks) -> Iterator[Export]:
    """The exports of a process."""
    for export in geometry.exports.values():
        yield Export(
            name=export.name,
            kind=export.kind,
            mark=marks.of(process, export.run) if export.size else "",
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
            for group in geometry.runs:
                yield from _imports(label, group, firsts)
            yield from (_external(label, each) for each in geometry.foreign)


def _imports(label: str, group: Imported, firsts: Mapping[str, str]) -> Iterator[HandleFlow]:
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
            kind=_kind(group),
            via=origin.via,
            count=origin.each,
            bytes_each=0 if isinstance(group, EventGroup) else group.size,
            path=group.path,
            outside=not origin.siblings,
            processes=processes,
        )


def _external(label: str, external: ExternalObject | ImportedSemaphore) -> HandleFlow:
    """One descriptor of an object that another API made."""
    origin = external.origin
    return HandleFlow(
        source=origin.holders[0],
        export=origin.export,
        target=label,
        name=external.name,
        kind="memory" if isinstance(external, ExternalObject) else "semaphore",
        via=origin.via,
        count=1,
        bytes_each=external.size if isinstance(external, ExternalObject) else 0,
        path=external.path,
        outside=True,
        external=True,
    )


def _kind(group: Imported) -> Kind:
    match group:
        case BufferGroup():
            return "buffer"
        case EventGroup():
            return "event"
        case _:
            return "chunk"
