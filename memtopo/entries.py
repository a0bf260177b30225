"""The entries of a spec's sections: what each may say, and what it means as typed data."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from memtopo.diagnostics import Fault
from memtopo.driver.types import HandleType
from memtopo.fields import (
    Address,
    Amount,
    Boolean,
    ChunkReference,
    Count,
    DeviceName,
    Devices,
    Gpus,
    Grants,
    Handles,
    Identities,
    PositiveAmount,
    PositiveBytes,
    ProcessCount,
    Reference,
    Rounding,
    SourceText,
    Transport,
    one_or_more,
)
from memtopo.units import Size

ExportKind = Literal["chunk", "buffer", "event"]


def _map_entry(value: object) -> object:
    return {"chunk": value} if isinstance(value, str) else value


def _shape(value: object) -> str | None:
    if isinstance(value, dict):
        return "<grant>"
    return "<parts>" if isinstance(value, list) else None


class Entry(BaseModel):
    """What every entry is: frozen, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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


class Event(Entry):
    """An event of a GPU, without timing."""

    device: DeviceName = Field(description="The GPU whose work it marks.")


class Export(Entry):
    """Chunks, buffers or an event, handed to other processes."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in get_args(ExportKind)]})

    chunk: ChunkReference | None = Field(default=None, description="A chunk, one of a counted chunk, or a slice.")
    buffer: ChunkReference | None = Field(default=None, description="A buffer, one of a counted one, or a slice.")
    event: ChunkReference | None = Field(default=None, description="An event.")
    via: Transport = Field(description="fd or fabric for chunks, ipc for buffers and events.")

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if not self.what:
            help = "write '{chunk: NAME, via: fd}', '{buffer: NAME, via: ipc}' or '{event: NAME, via: ipc}'"
            raise Fault("MT102", "an export says what it is of: a chunk, a buffer or an event", help=help)
        if len(self.what) > 1:
            both = " and ".join(f"{kind} {str(reference)!r}" for kind, reference in self.what)
            raise Fault("MT103", f"an export is of one thing, found {both}", help="write an export for each of them")
        return self

    @property
    def what(self) -> list[tuple[ExportKind, Reference]]:
        """The kind of what is exported, and which of it."""
        kinds: tuple[tuple[ExportKind, Reference | None], ...]
        kinds = (("chunk", self.chunk), ("buffer", self.buffer), ("event", self.event))
        return [(kind, reference) for kind, reference in kinds if reference]


class Import(Entry):
    """What another process exports. From outside of the file, what it is gets declared, and then checked."""

    source: SourceText = Field(
        alias="from", description="server.weights of a sibling, weights-server/w of a held layout, /path/to/socket/w."
    )
    via: Transport | None = Field(default=None, description="fd, fabric or ipc; of a sibling it is known, else fd.")
    location: Devices | None = Field(default=None, description="Where the memory is, as for a chunk.")
    size: PositiveAmount | None = Field(default=None, description="Bytes of each chunk or buffer.")
    count: Count | None = Field(default=None, description="How many handles the export has, where it is counted.")
    device: DeviceName | None = Field(default=None, description="Of an event: the GPU whose work it marks.")


class MapEntry(Entry):
    """A chunk, one of a counted chunk or a slice of it, where the entry before ended or at `offset`."""

    chunk: ChunkReference = Field(
        description="hot, page for all of a counted chunk, page.3, or page.0:4 for the first 4."
    )
    offset: Amount | None = Field(
        default=None, description="Where in the range it begins; else where the entry before ended."
    )


class Part(Entry):
    """Access to a part of a range; a part covers whole mappings (fact 20)."""

    offset: Amount = Field(default=Size(0), description="Where in the range the part begins.")
    size: PositiveAmount = Field(description="Bytes of the part, which covers whole mappings.")
    grant: Grants = Field(description="The devices that may use it, each with r, rw or none.")


_Shaped = Annotated[
    Annotated[Grants, Tag("<grant>")] | Annotated[list[Part], Tag("<parts>")],
    Discriminator(_shape, custom_error_type="access", custom_error_message="access"),
]
_Mapped = Annotated[MapEntry, BeforeValidator(_map_entry, json_schema_input_type=ChunkReference | MapEntry)]
_OneOrMoreMapped = _Mapped | Annotated[list[_Mapped], Field(min_length=1)]
_MapList = Annotated[list[_Mapped], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreMapped)]


class Process(Entry):
    """What a process has besides sections."""

    count: ProcessCount | None = Field(default=None, description="How many of it: reader becomes reader.0 and so on.")
    visible: Gpus = Field(default=[], description="The only GPUs that it is to see; else those that memtopo sees.")


class Section(NamedTuple):
    """How a section is read: its entries, the model whose keys they have, and whether its own keys refer to others."""

    entry: Any
    model: type[Entry] | None
    referring: bool


SECTIONS = {
    "devices": Section(Identities, None, referring=False),
    "ranges": Section(Range, Range, referring=False),
    "chunks": Section(Chunk, Chunk, referring=False),
    "map": Section(_MapList, MapEntry, referring=True),
    "access": Section(_Shaped, Part, referring=True),
    "buffers": Section(Buffer, Buffer, referring=False),
    "events": Section(Event, Event, referring=False),
    "exports": Section(Export, Export, referring=False),
    "imports": Section(Import, Import, referring=False),
}
