"""Steps of chunks, and the export of memory as a dma-buf."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

from memtopo.common.signals import deferred
from memtopo.common.text import numbered
from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType, Location, LocationKind, Properties
from memtopo.driver.wrappers import call_each
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.kinds.exportable import DmaBufMemory
from memtopo.kinds.layout import Layout, LayoutTable, current
from memtopo.kinds.objects import ImportShareable, ObjectStep, TryExport
from memtopo.kinds.runs import Progressed, StepRun
from memtopo.kinds.step import (
    DEFECT_ADVICE,
    PROBE_ADVICE,
    ErrorHint,
    Finding,
    HandleReference,
    Phase,
    StepDescription,
    Undoing,
    first_difference,
)

_HOST = LocationKind.HOST
"""Looked up once: a member of an enumeration takes longer to find than the rest of what is done for a chunk."""


RETAINED = LayoutTable[str, int]()
"""References that a check has retained and not yet released, by the label of the expected chunk."""


LENT = LayoutTable[str, tuple[Hashable, str]]()
"""Effect of the pool that a change has undone and the export that lent a chunk of it, by the label of the chunk.

A rollback of the change makes that pool again; only chunks that exist until then are still lent.
"""


class ChunkStep(ObjectStep, frozen=True):
    """Base of the steps that have a handle of an object of `size` bytes under its label."""

    size: int

    noun = leaks_as = "chunk"
    table = "chunks"
    undoing = Undoing("cuMemRelease", "release")

    def undo(self, driver: Driver, layout: Layout) -> None:
        """Release the reference to the chunk, after a reference that a failed check has not released."""
        for handles in (layout.of(RETAINED), layout.chunks):
            if self.label in handles:
                driver.mem_release(handles[self.label])
                del handles[self.label]
        layout.of(LENT).pop(self.label, None)


class CreateChunk(ChunkStep, frozen=True):
    """Create a chunk of `size` bytes with exactly these properties (fact 3)."""

    properties: Properties

    phase = Phase.CREATE
    verb = "create"
    call = "cuMemCreate"
    hints: ClassVar = {
        "NOT_PERMITTED": ErrorHint(
            "a fabric handle needs an IMEX channel, also where it is advertised (fact 4)",
            f"use 'handles: [fd]', or have the administrator set up IMEX; {PROBE_ADVICE}",
        ),
        "INVALID_VALUE": ErrorHint(
            "size and properties must be ones that the device supports (facts 3, 6)", PROBE_ADVICE
        ),
        "INVALID_DEVICE": ErrorHint("the device is not visible to this process (fact 3)", "see CUDA_VISIBLE_DEVICES"),
    }

    @property
    def allocates(self) -> tuple[Location, int]:
        return self.properties.location, self.size

    def do(self, driver: Driver, layout: Layout) -> None:
        layout.chunks[self.label] = driver.mem_create(self.size, self.properties)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        observed = driver.mem_get_allocation_properties_from_handle(layout.chunks[self.label])
        yield Finding("properties", self.label, _as_reported(self.properties), observed, self.path)

    def describe(self) -> StepDescription:
        words = ", ".join(self.properties.words)
        return StepDescription(self.label, str(self.properties.location), self.size, note=words)


class CreateChunks(StepRun, frozen=True):
    """Creation of chunks of a group."""

    group: ChunkGroup

    @property
    def period(self) -> int:
        return len(self.group.properties)

    def step(self, index: int) -> CreateChunk:
        group = self.group
        return CreateChunk(group.path, group.label(index), group.size, group.properties_of(index))

    def index_of(self, resource: Hashable) -> int | None:
        noun, label = resource if isinstance(resource, tuple) and len(resource) > 1 else ("", "")
        entry, number = numbered(label) if noun == ChunkStep.noun else ("", None)
        known = entry == self.group.name and number in self.indices
        return self.indices.index(number) if known and number is not None else None

    def do(self, driver: Driver, layout: Layout) -> Progressed:
        arguments = [(self.group.size, own) for own in self._in_turn(self.group.properties)]
        with deferred():  # an interrupt would lose the handles
            handles, error = call_each(driver, "mem_create", arguments)
            layout.chunks.update(zip(self._labels, handles, strict=False))
        return Progressed(len(handles), error)

    def undo(self, driver: Driver, layout: Layout) -> Progressed:
        chunks, labels = layout.chunks, self._labels
        if layout.of(RETAINED).keys() or layout.of(LENT).keys() or not chunks.keys() >= set(labels):
            return super().undo(driver, layout)
        with deferred():
            released, error = call_each(driver, "mem_release", [(chunks[label],) for label in labels])
            for label in labels[: len(released)]:
                del chunks[label]
        return Progressed(len(released), error)

    def check(self, driver: Driver, layout: Layout) -> Progressed:
        handles = [(layout.chunks[label],) for label in self._labels]
        found, error = call_each(driver, "mem_get_allocation_properties_from_handle", handles)
        number = first_difference(self._in_turn([*map(_as_reported, self.group.properties)]), found)
        findings = [Finding.equal("properties", number)] if number else []
        return Progressed(number, error if number == len(found) else None, findings)

    @property
    def _labels(self) -> list[str]:
        return self.group.labels(self.indices)

    def _in_turn(self, properties: Sequence[Properties]) -> list[Properties]:
        """Properties of the chunks, which have those of the group in turn."""
        return [properties[index % len(properties)] for index in self.indices]


class ImportChunk(ChunkStep, ImportShareable, frozen=True):
    """Request one handle and import it; `location` is the location that the driver reports here (fact 43).

    The imported handle has its own reference, so the handle source may close the descriptor afterwards.
    """

    location: Location
    kind: HandleType
    source: HandleReference

    leaks_as = "imported chunk"
    hints: ClassVar = {
        "UNKNOWN": ErrorHint(
            "the received object is not a handle of this driver (fact 27)", "check the object that the exporter sends"
        )
    }

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        properties = driver.mem_get_allocation_properties_from_handle(layout.chunks[self.label])
        observed = Properties(properties.location, properties.handles)
        # What the driver reports of memory of another node is not known (fact 88).
        location = properties.location if self.location.node else self.location
        yield Finding("imported", self.label, Properties(location), observed, self.path)

    @property
    def note(self) -> str:
        return ", ".join(self.kind.words)


class TryExportChunk(TryExport, frozen=True):
    """Export a chunk as a test."""

    verb = "export"
    call = "cuMemExportToShareableHandle"
    hints: ClassVar = {
        "INVALID_VALUE": ErrorHint(
            "the chunk was created without that handle type, or is itself imported (fact 26)", DEFECT_ADVICE
        )
    }

    def export(self, driver: Driver, layout: Layout) -> Handle:
        kind = HandleType[self.via.upper()]
        return Handle.of(driver.mem_export_to_shareable_handle(layout.chunks[self.object], kind))


class TryExportDmaBuf(TryExport, frozen=True):
    """Export a dma-buf of the memory behind the object with an index as a test, after all chunks are mapped.

    The descriptor is closed, since an open one pins the memory (fact 84).
    """

    memory: DmaBufMemory
    index: int

    apart = frozenset({"path", "memory", "index"})
    phase = Phase.SETTLE
    verb = "export"
    call = "cuMemGetHandleForAddressRange"
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint(
            "the driver exports no dma-buf of this memory (fact 83): it needs the open kernel modules, and Linux 5.12",
            PROBE_ADVICE,
        ),
        "INVALID_VALUE": ErrorHint(
            "a dma-buf requires mapped memory of one GPU, in whole pages of the host (fact 83)", DEFECT_ADVICE
        ),
        "UNKNOWN": ErrorHint("the driver exports no dma-buf of compressed memory (fact 83)", DEFECT_ADVICE),
        "OPERATING_SYSTEM": ErrorHint("this process has too many open files (fact 83)", "raise the limit: ulimit -n"),
    }

    @property
    def effect(self) -> Hashable:
        return super().effect, self.memory.bytes, self.needs

    @property
    def needs(self) -> tuple[Hashable, ...]:
        place = RangeGroup.noun if self.memory.placements else self.noun
        own = (place, self.memory.place(self.index)[0])
        return tuple(dict.fromkeys([own, *self.memory.resources(self.index)]))

    def export(self, driver: Driver, layout: Layout) -> Handle:
        """Export it in the context of its GPU (fact 83).

        Raises `KeyError` if it has no memory in the present state of the layout.
        """
        memory, fd = self.memory, -1
        address = memory.address(layout, self.index)
        try:
            with current(driver, layout.contexts[memory.location(self.index).id]):
                fd = driver.mem_get_handle_for_address_range(address, memory.size, memory.flags)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        return Handle(fd)

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the size of a dma-buf, which its descriptor reports."""
        handle = self.export(driver, layout)
        assert handle.fd is not None
        try:
            yield Finding("dma-buf", self.object, self.memory.size, os.lseek(handle.fd, 0, os.SEEK_END), self.path)
        finally:
            handle.close()


def _as_reported(properties: Properties) -> Properties:
    """Properties as the driver reports them: HOST memory has the location of NUMA node 0 (fact 6)."""
    if properties.location.kind is _HOST:
        return properties._replace(location=Location(LocationKind.HOST_NUMA, 0))
    return properties
