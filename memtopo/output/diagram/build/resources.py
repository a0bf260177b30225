"""Resources of a process that are in no range."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import rounded
from memtopo.geometry import BufferGroup, Geometry, ImportedSemaphore, ManagedAllocation
from memtopo.output.diagram.build.names import Marks, named, source, turn
from memtopo.output.diagram.model import Resource


def things(geometry: Geometry, process: str, marks: Marks) -> Iterator[Resource]:
    """What has no place in a range, in the order of the spec, imports behind what is made here."""
    for buffer in geometry.buffers.values():
        yield Resource(
            kind="buffer",
            name=buffer.name,
            mark=marks.of(process, buffer),
            count=buffer.count,
            bytes_each=buffer.size,
            locations=turn(buffer.places),
            origin=source(buffer.origin),
            notes=tuple(_notes(buffer)),
            path=buffer.path,
        )
    for event in geometry.events.values():
        places = turn(event.places)
        yield Resource("event", event.name, "", event.count, 0, places, source(event.origin), path=event.path)
    yield from _managed(geometry, process)
    yield from _external(geometry, process)
    for semaphore in geometry.semaphores.values():
        place, notes = (str(semaphore.place),), tuple(_turns(semaphore))
        origin = source(semaphore.origin)
        yield Resource("semaphore", semaphore.name, "", 1, 0, place, origin, notes, path=semaphore.path, external=True)


def _managed(geometry: Geometry, process: str) -> Iterator[Resource]:
    for run in geometry.managed.values():
        yield Resource(
            kind="managed",
            name=run.name,
            mark=named(process, run.name),
            bytes_each=run.size,
            locations=(f"gpu{run.home}",),
            notes=tuple(_advised(run)),
            noun="managed memory",
            path=run.path,
        )


def _advised(run: ManagedAllocation) -> Iterator[str]:
    if run.attach != "global":
        yield f"attached to {'one stream' if run.attach == 'single' else 'the host'}"
    if run.prefer:
        yield f"prefers {run.prefer}"
    if run.accessed_by:
        yield f"accessed by {', '.join(map(str, run.accessed_by))}"
    if run.read_mostly:
        yield "read mostly"
    if run.prefetch:
        yield f"prefetched to {run.prefetch}"


def _external(geometry: Geometry, process: str) -> Iterator[Resource]:
    for run in geometry.external.values():
        mark = named(process, run.name)
        yield Resource(
            kind="external",
            name=run.name,
            mark=mark,
            bytes_each=run.size,
            locations=(str(run.place),),
            origin=source(run.origin),
            notes=("dedicated",) if run.dedicated else (),
            parts=tuple(
                Resource(
                    kind="part",
                    name=f"{run.name}.{part.name}",
                    mark=mark,
                    bytes_each=part.size,
                    offset=part.offset,
                    path=part.path,
                )
                for part in run.buffers
            ),
            path=run.path,
            noun="external object",
            external=True,
            via=run.origin.via,
        )


def _turns(run: ImportedSemaphore) -> Iterator[str]:
    yield "timeline" if run.timeline else "binary"
    if run.wait is not None:
        yield f"waits for {run.wait}" if run.timeline else "waits"
    if run.signal is not None:
        yield f"signals {run.signal}" if run.timeline else "signals"


def _notes(buffer: BufferGroup) -> Iterator[str]:
    if buffer.size != buffer.declared and not buffer.origin:
        yield f"{rounded(buffer.declared)} in a block of its own"
