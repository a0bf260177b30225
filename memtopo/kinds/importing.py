"""The steps that take what others created, of whatever kind, and those that go with waiting for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.driver.types import HandleType, Location, LocationKind, MemoryHandleType, SemaphoreHandleType, gpu
from memtopo.geometry import BufferGroup, ChunkGroup, EventGroup, ExternalObject, Geometry, ImportedSemaphore
from memtopo.kinds.steps import (
    AllocateBuffer,
    AllocateManaged,
    Attach,
    AwaitStream,
    DuplicateDescriptor,
    HandleRequest,
    ImportChunk,
    ImportMemory,
    ImportSemaphore,
    MapExternal,
    OpenBuffer,
    OpenEvent,
    RetainContext,
    Step,
)
from memtopo.kinds.steps.base import context_name, kernels_name

UNSEEN = -2
"""The ordinal under which the driver reports an imported chunk's GPU that the process does not see (fact 43)."""


def imports(geometry: Geometry) -> Iterator[Step]:
    """One connection for each holder outside, then one handle for each thing that is imported."""
    yield from _attached(geometry)
    for run in geometry.runs:
        if run.origin:
            for index in range(run.count):
                holder, number = run.origin.of(index)
                ask = HandleRequest(holder, run.origin.export, number, run.origin.text(holder))
                yield _imported(run, index, ask, geometry.visible)
    # Each descriptor is handed over as soon as it is copied: the driver may close it, refused too (fact 54).
    for memory in geometry.external.values():
        yield _taken(memory)
        kind = MemoryHandleType[memory.origin.via.upper()]
        yield ImportMemory(memory.path, memory.name, memory.size, memory.place.id, kind, memory.dedicated)
    for each in geometry.semaphores.values():
        yield _taken(each)
        yield ImportSemaphore(each.path, each.name, each.place.id, SemaphoreHandleType[each.origin.via.upper()])


def mapped(geometry: Geometry) -> Iterator[Step]:
    """What another API made, as a whole and in parts. The whole comes first, and shows whether its size is true."""
    for run in geometry.external.values():
        paths = {f"{run.name}.{part.name}": part.path for part in run.buffers}
        for label, (offset, size) in run.parts.items():
            yield MapExternal(paths.get(label, run.path), label, run.name, run.place.id, offset, size)


def awaited(geometry: Geometry, steps: Sequence[Step]) -> Iterator[Step]:
    """One for each GPU that waits for a semaphore; `steps` are all before it."""
    waiting = [run for run in geometry.semaphores.values() if run.wait is not None]
    for device, path in {run.place.id: run.path for run in reversed(waiting)}.items():
        yield AwaitStream(path, device, tuple(_held_up(steps, device)))


def _attached(geometry: Geometry) -> Iterator[Step]:
    told: set[str] = set()
    for run in (*geometry.runs, *geometry.foreign):
        if run.origin and not run.origin.siblings and run.origin.holders[0] not in told:
            told.add(run.origin.holders[0])
            yield Attach(run.path, run.origin.holders[0])


def _taken(run: ExternalObject | ImportedSemaphore) -> Step:
    holder, number = run.origin.of(0)
    return DuplicateDescriptor(
        run.path, run.name, HandleRequest(holder, run.origin.export, number, run.origin.text(holder))
    )


def _imported(
    run: ChunkGroup | BufferGroup | EventGroup, index: int, ask: HandleRequest, visible: Sequence[Location]
) -> Step:
    match run:
        case ChunkGroup():
            place = run.place_of(index)
            if visible and place.kind is LocationKind.GPU and place not in visible:
                place = gpu(UNSEEN)
            assert run.origin
            return ImportChunk(run.path, run.label(index), run.size, place, HandleType[run.origin.via.upper()], ask)
        case BufferGroup():
            return OpenBuffer(run.path, run.label(index), run.size, run.place_of(index).id, ask)
        case EventGroup():
            return OpenEvent(run.path, run.label(index), run.place_of(index).id, ask)


def _held_up(steps: Sequence[Step], device: int) -> Iterator[str]:
    """What cannot be given back as long as a stream of a GPU waits, or is not known to be (fact 58)."""
    for step in steps:
        match step:
            case RetainContext():
                yield from (context_name(step.device), kernels_name(step.device))
            case AllocateManaged() | ImportSemaphore():
                yield step.leak_name()
            case AllocateBuffer() | OpenBuffer() | MapExternal() | ImportMemory() if step.device == device:
                yield step.leak_name()
