"""Resources of a process that are in no range: one function for each kind of entry."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import rounded
from memtopo.driver.types import gpu
from memtopo.geometry import BufferGroup, EventGroup, ExternalObject, Geometry, ImportedSemaphore, ManagedAllocation
from memtopo.output.diagram.build.names import Marks, location_names, own_mark, source
from memtopo.output.diagram.model import Resource


def resources(geometry: Geometry, process: str, marks: Marks) -> Iterator[Resource]:
    """The resources of a process in the order of the spec, those created here before imports."""
    yield from (_buffer(each, marks.of(process, each)) for each in geometry.buffers.values())
    yield from map(_event, geometry.events.values())
    yield from (_managed(each, own_mark(process, each.name)) for each in geometry.managed.values())
    yield from (_external(each, own_mark(process, each.name)) for each in geometry.external.values())
    yield from map(_semaphore, geometry.semaphores.values())


def _buffer(group: BufferGroup, mark: str) -> Resource:
    rounded_up = group.size != group.declared and not group.origin
    return Resource(
        kind="buffer",
        name=group.name,
        mark=mark,
        count=group.count,
        bytes_each=group.size,
        locations=location_names(group.places),
        origin=source(group.origin),
        notes=(f"{rounded(group.declared)} in a block of its own",) if rounded_up else (),
        path=group.path,
    )


def _event(group: EventGroup) -> Resource:
    return Resource(
        kind="event",
        name=group.name,
        count=group.count,
        locations=location_names(group.places),
        origin=source(group.origin),
        path=group.path,
    )


def _managed(allocation: ManagedAllocation, mark: str) -> Resource:
    return Resource(
        kind="managed",
        noun="managed memory",
        name=allocation.name,
        mark=mark,
        bytes_each=allocation.size,
        locations=(str(gpu(allocation.home)),),
        notes=tuple(_advice(allocation)),
        path=allocation.path,
    )


def _advice(allocation: ManagedAllocation) -> Iterator[str]:
    if allocation.attach != "global":
        yield f"attached to {'one stream' if allocation.attach == 'single' else 'the host'}"
    if allocation.prefer:
        yield f"prefers {allocation.prefer}"
    if allocation.accessed_by:
        yield f"accessed by {', '.join(map(str, allocation.accessed_by))}"
    if allocation.read_mostly:
        yield "read mostly"
    if allocation.prefetch:
        yield f"prefetched to {allocation.prefetch}"


def _external(external: ExternalObject, mark: str) -> Resource:
    return Resource(
        kind="external",
        noun="external object",
        external=True,
        name=external.name,
        mark=mark,
        bytes_each=external.size,
        locations=(str(external.place),),
        origin=source(external.origin),
        via=external.origin.via,
        notes=("dedicated",) if external.dedicated else (),
        parts=tuple(
            Resource(
                kind="part",
                name=f"{external.name}.{part.name}",
                mark=mark,
                bytes_each=part.size,
                offset=part.offset,
                path=part.path,
            )
            for part in external.buffers
        ),
        path=external.path,
    )


def _semaphore(semaphore: ImportedSemaphore) -> Resource:
    return Resource(
        kind="semaphore",
        external=True,
        name=semaphore.name,
        locations=(str(semaphore.place),),
        origin=source(semaphore.origin),
        notes=tuple(_operations(semaphore)),
        path=semaphore.path,
    )


def _operations(semaphore: ImportedSemaphore) -> Iterator[str]:
    yield "timeline" if semaphore.timeline else "binary"
    if semaphore.wait is not None:
        yield f"waits for {semaphore.wait}" if semaphore.timeline else "waits"
    if semaphore.signal is not None:
        yield f"signals {semaphore.signal}" if semaphore.timeline else "signals"
