"""What memtopo's processes hand to one another."""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator

from memtopo.diagnostics.model import InvalidValue
from memtopo.kinds.entries.base import Entry
from memtopo.language.fields import (
    ChunkReference,
    Count,
    DeviceName,
    Devices,
    PositiveAmount,
    Reference,
    SourceText,
    Transport,
)

ExportKind = Literal["chunk", "buffer", "event"]


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
            raise InvalidValue("MT102", "an export says what it is of: a chunk, a buffer or an event", help=help)
        if len(self.what) > 1:
            both = " and ".join(f"{kind} {str(reference)!r}" for kind, reference in self.what)
            raise InvalidValue(
                "MT103", f"an export is of one thing, found {both}", help="write an export for each of them"
            )
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
