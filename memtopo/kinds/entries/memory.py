"""What a process has of its own: addresses, memory and events."""

from __future__ import annotations

from pydantic import Field

from memtopo.driver.types import HandleType
from memtopo.kinds.entries.base import Entry
from memtopo.language.fields import (
    Address,
    Attachment,
    Boolean,
    Count,
    DeviceName,
    Devices,
    Handles,
    PositiveAmount,
    PositiveBytes,
    Rounding,
)


class Range(Entry):
    """A reserved address range. `address` is a wish; with `fixed`, a miss is a failed check."""

    size: PositiveAmount = Field(description="Bytes of addresses to reserve: 96MiB, or 4 granules of its chunks.")
    align: PositiveAmount | None = Field(default=None, description="A power of two that the address is a multiple of.")
    address: Address | None = Field(
        default=None, description="Where it would best begin, 0x…; a wish, unless it is fixed."
    )
    fixed: Boolean = Field(
        default=False, description="Whether another address than the one wished for is a failed check."
    )
    count: Count | None = Field(default=None, description="How many equal ranges: kv becomes kv.0, kv.1 and so on.")
    round: Rounding | None = Field(
        default=None, description="up: a size that is no multiple of the granularity grows to one."
    )


class Chunk(Entry):
    """Physical memory on a GPU or the host; with `count`, that many, dealt to the locations in turn."""

    location: Devices = Field(description="Where the memory is: a device's name, or several, which take turns.")
    size: PositiveAmount = Field(description="Bytes of each chunk: 2MiB, or 1 granule.")
    count: Count | None = Field(default=None, description="How many in all: page becomes page.0, page.1 and so on.")
    handles: Handles = Field(default=[], description="How it may be handed to other processes: fd, fabric or both.")
    rdma: Boolean = Field(default=False, description="Whether network cards may reach it by GPUDirect RDMA.")
    compressible: Boolean = Field(default=False, description="Whether the GPU may compress it.")
    round: Rounding | None = Field(
        default=None, description="up: a size that is no multiple of the granularity grows to one."
    )

    @property
    def handle_types(self) -> HandleType:
        """All handle types asked for, as one mask."""
        mask = HandleType.NONE
        for kind in self.handles:
            mask |= kind
        return mask


class Buffer(Entry):
    """Memory of `cuMemAlloc`, which legacy IPC can share; with `count`, that many, dealt to the locations in turn."""

    location: Devices = Field(description="The GPU whose memory it is, or several, which take turns.")
    size: PositiveBytes = Field(description="Bytes of each buffer; whole 2MiB blocks where it is exported.")
    count: Count | None = Field(default=None, description="How many in all: b becomes b.0, b.1 and so on.")


class Managed(Entry):
    """Memory of `cuMemAllocManaged`, which migrates between GPUs and the host, with advice."""

    size: PositiveBytes = Field(description="Bytes of it.")
    attach: Attachment = Field(
        default="global",
        description="Who uses it: every GPU and the host (global), the host first (host), or one stream (single).",
    )
    prefer: DeviceName | None = Field(default=None, description="The device whose memory it best stays in.")
    accessed_by: Devices = Field(
        default=[], description="GPUs, or host, that use it from where it is, instead of having it migrate to them."
    )
    read_mostly: Boolean = Field(default=False, description="Whether each reader is to have a copy of its own.")
    prefetch: DeviceName | None = Field(default=None, description="The device that it migrates to when it is built.")


class Event(Entry):
    """An event of a GPU, without timing."""

    device: DeviceName = Field(description="The GPU whose work it marks.")
