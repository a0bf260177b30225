"""Handles on their way between the processes of a layout, and from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from memtopo.geometry import EventGroup, ExternalObject, Geometry, ImportedSemaphore
from memtopo.geometry.groups import BufferGroup, Imported, Kind
from memtopo.output.diagram.build.names import Marks
from memtopo.output.diagram.model import Export, HandleFlow


def exports(geometry: Geometry, process: str, marks: Marks) -> Iterator[Export]:
    """What is handed to other processes."""
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


def flows(members: Mapping[str, Geometry], groups: Mapping[str, str]) -> Iterator[HandleFlow]:
    """What each process takes from others, told once for those that look alike.

    `groups` leads from the label of a process to that of the first one that looks like it.
    """
    for label, geometry in members.items():
        if groups[label] == label:
            for run in geometry.runs:
                yield from _taken(label, run, groups)
            yield from (_foreign(label, run) for run in geometry.foreign)


def _taken(label: str, run: Imported, groups: Mapping[str, str]) -> Iterator[HandleFlow]:
    origin = run.origin
    if origin is None:
        return
    sources = _sources(origin.holders, groups) if origin.siblings else dict.fromkeys(origin.holders, 1)
    for source, processes in sources.items():
        yield HandleFlow(
            source=source,
            export=origin.export,
            target=label,
            name=run.name,
            kind=_kind(run),
            via=origin.via,
            count=origin.each,
            bytes_each=0 if isinstance(run, EventGroup) else run.size,
            path=run.path,
            outside=not origin.siblings,
            processes=processes,
        )


def _foreign(label: str, run: ExternalObject | ImportedSemaphore) -> HandleFlow:
    """What another API made: one descriptor of it."""
    origin, memory = run.origin, isinstance(run, ExternalObject)
    return HandleFlow(
        source=origin.holders[0],
        export=origin.export,
        target=label,
        name=run.name,
        kind="memory" if memory else "semaphore",
        via=origin.via,
        count=1,
        bytes_each=run.size if isinstance(run, ExternalObject) else 0,
        path=run.path,
        outside=True,
        external=True,
    )


def _sources(holders: Sequence[str], groups: Mapping[str, str]) -> Mapping[str, int]:
    return Counter(groups[holder] for holder in holders)


def _kind(run: Imported) -> Kind:
    match run:
        case BufferGroup():
            return "buffer"
        case EventGroup():
            return "event"
        case _:
            return "chunk"
