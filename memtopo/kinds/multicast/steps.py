"""Steps of multicast objects, in the order of NCCL and PyTorch (fact 87).

An object is created, or imported; its GPUs are added; then memory is bound that is mapped already, and last the object
is mapped. The undo is in reverse: memory is unbound before it is unmapped and released.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType
from memtopo.kinds.chunks.steps import ChunkStep
from memtopo.kinds.layout import Layout, LayoutTable
from memtopo.kinds.mappings.steps import MapChunk, SetAccess
from memtopo.kinds.objects import ImportShareable
from memtopo.kinds.step import ErrorHint, HandleReference, InChange, Phase, Step, StepDescription, TableStep, Undoing

_SYSTEM = ErrorHint("the fabric manager or the switches do not work as they should (fact 87)", "see its log")


class MulticastStep(ChunkStep, frozen=True):
    """Base of the steps that have a handle of a multicast object.

    A change gives it back after all else: GPUs that were added once cannot be added again if the change fails before.
    """

    noun = "multicast"
    leaks_as = "multicast object"
    in_change = InChange(undone_late=True)


class CreateMulticast(MulticastStep, frozen=True):
    """Create an object for a team of `devices` GPUs, of which `team` has the names."""

    devices: int
    team: str
    handles: HandleType

    phase = Phase.CREATE
    verb = "create"
    call = "cuMulticastCreate"
    passes = ("devices", "size", "handles")
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint("multicast was never tried on this machine (fact 87)", "plan and draw it only")
    }

    def describe(self) -> StepDescription:
        return StepDescription(self.label, self.team, self.size, note=", ".join(("multicast", *self.handles.words)))


class ImportMulticast(MulticastStep, ImportShareable, frozen=True):
    """Import an object that another process of the spec has created."""

    kind: HandleType
    source: HandleReference

    @property
    def note(self) -> str:
        return ", ".join(("multicast", *self.kind.words))


class AddDevice(Step, frozen=True):
    """Add a GPU to the team of an object, until the object ends."""

    object: str
    device: int

    phase = Phase.IMPORT
    verb = "add"
    call = "cuMulticastAddDevice"
    in_change = InChange(renews_needs=True, ends_with_needs=True)
    hints: ClassVar = {
        "INVALID_DEVICE": ErrorHint("the GPU is not of the clique of the others (fact 87)", "see nvidia-smi topo -m"),
        "ILLEGAL_STATE": _SYSTEM,
    }
    required: ClassVar = {"multicast": "object"}

    @property
    def provides(self) -> Hashable:
        return ("team member", self.object, self.device)

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.multicast_add_device(layout.chunks[self.object], self.device)

    def describe(self) -> StepDescription:
        return StepDescription(f"gpu{self.device}", self.object)


BOUND_BYTES = LayoutTable[tuple[str, int, int], int]()
"""Bytes that are bound to a multicast object, by its label, GPU, and offset in it; its handle is in `Layout.chunks`."""


class BindStep(TableStep, frozen=True):
    """Base of the steps that bind a whole chunk of a GPU at an offset of an object. No call queries what is bound."""

    object: str
    device: int
    offset: int
    chunk: str
    size: int

    phase = Phase.BIND
    verb = "bind"
    undoing = Undoing("cuMulticastUnbind", "unbind")
    table = BOUND_BYTES
    hints: ClassVar = {
        "OUT_OF_MEMORY": ErrorHint(
            "the slots of the switch are taken (fact 87)", "check which other programs use multicast"
        ),
        "SYSTEM_NOT_READY": _SYSTEM,
    }

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return _needs(self)

    @property
    def key(self) -> tuple[str, int, int]:
        return self.object, self.device, self.offset

    def kept(self, made: None) -> int:
        return self.size

    def end(self, driver: Driver, layout: Layout, found: int) -> None:
        driver.multicast_unbind(layout.chunks[self.object], self.device, self.offset, found)

    def describe(self) -> StepDescription:
        return StepDescription(self.chunk, self.object, self.size, (self.object, self.device), f"gpu{self.device}")

    def leak_name(self) -> str:
        return f"binding of {self.chunk} to {self.object} at {self.offset:#x}"

    def blocks(self) -> tuple[str, ...]:
        return MulticastStep.leak(self.object), ChunkStep.leak(self.chunk)


class BindChunk(BindStep, frozen=True):
    """Bind a chunk by its handle."""

    call = "cuMulticastBindMem"

    def arguments(self, layout: Layout) -> tuple[int, ...]:
        return layout.chunks[self.object], self.offset, layout.chunks[self.chunk], 0, self.size


class BindAddress(BindStep, frozen=True):
    """Bind a chunk by its address: that of a mapping, `at` an offset of a range."""

    range: str
    at: int

    call = "cuMulticastBindAddr"

    @property
    def needs(self) -> tuple[Hashable, ...]:
        return (*_needs(self), ("range", self.range))

    def arguments(self, layout: Layout) -> tuple[int, ...]:
        address = layout.ranges[self.range].address + self.at
        return layout.chunks[self.object], self.offset, address, self.size


def _needs(step: BindStep) -> tuple[Hashable, ...]:
    """The object, the GPU in its team, and the chunk."""
    return ("multicast", step.object), ("team member", step.object, step.device), ("chunk", step.chunk)


class MapMulticast(MapChunk, frozen=True):
    """Map an object, as a chunk; its bytes are those of all GPUs, so that no check reads or writes them there."""

    phase = Phase.BIND
    required: ClassVar = {"range": "range", "multicast": "chunk"}
    position = "", 1  # after all bindings, and before access to it

    @property
    def readable(self) -> None:  # type: ignore[override]
        """None: only multimem instructions read at a multicast address."""


class SetMulticastAccess(SetAccess, frozen=True):
    """Grant access to an address where an object is mapped."""

    phase = Phase.BIND
    position = "", 2  # after the mappings of all objects
