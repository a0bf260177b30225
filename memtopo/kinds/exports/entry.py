"""Entries of exports, and the registry of the kinds that they are of."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from memtopo.common.text import enumerated
from memtopo.diagnostics.model import InvalidValue
from memtopo.driver.handles import Via
from memtopo.kinds.allocations import ALLOCATIONS
from memtopo.kinds.buffers import BUFFERS
from memtopo.kinds.chunks import CHUNKS
from memtopo.kinds.dmabuf import DMABUF, DmaBufs
from memtopo.kinds.events import EVENTS
from memtopo.kinds.exportable import ExportKind
from memtopo.kinds.kind import Kind
from memtopo.kinds.multicast import MULTICAST
from memtopo.kinds.pools import POOLS
from memtopo.kinds.ranges import RANGES
from memtopo.language.entries import Entry
from memtopo.language.fields import ChunkReference, Commit, DmaBufMapping, ExportTransport, OwnName, Reference

EXPORTABLE: dict[str, ExportKind] = {
    kind.group.noun: kind for kind in (CHUNKS, BUFFERS, EVENTS, ALLOCATIONS, MULTICAST)
}
"""Kinds whose objects other processes can import, by the key that names them in an export."""

ALL: dict[str, Kind] = {**EXPORTABLE, RANGES.group.noun: RANGES}
"""Kinds whose objects can be exported."""

DMA_BUFS = {
    noun: DmaBufs(kind)
    for noun, kind in ALL.items()
    if kind is RANGES or (kind.group.memory and kind is not ALLOCATIONS)
}
"""Kinds whose memory can be exported as dma-bufs."""


def _transports() -> str:
    """Return the transports of all exportable kinds: `fd or fabric for chunks, ipc for buffers and events`."""
    sections: dict[tuple[Via, ...], list[str]] = {}
    for kind in EXPORTABLE.values():
        sections.setdefault(kind.transports, []).append(kind.plural)
    each = (f"{enumerated(transports)} for {enumerated(names, 'and')}" for transports, names in sections.items())
    memory = enumerated((kind.plural for kind in DMA_BUFS.values()), "and")
    return f"{', '.join(each)}; dmabuf for {memory}"


class Export(Entry):
    """Chunks, buffers, an event or allocations, exported to other processes; or a range, for other devices."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in ALL]})

    chunk: ChunkReference | None = Field(default=None, description="A chunk, one of a counted chunk, or a slice.")
    buffer: ChunkReference | None = Field(default=None, description="A buffer, one of a counted one, or a slice.")
    event: ChunkReference | None = Field(default=None, description="An event.")
    multicast: ChunkReference | None = Field(default=None, description="A multicast object.")
    allocation: ChunkReference | None = Field(
        default=None, description="An allocation of a pool, one of a counted one, or a slice; its pool goes with it."
    )
    range: ChunkReference | None = Field(default=None, description="A range that chunks fill, via dmabuf.")
    part: OwnName | None = Field(default=None, description="A named part of each chunk, in pages of 4KiB; via dmabuf.")
    via: ExportTransport = Field(description=f"{_transports()}.")
    mapping: DmaBufMapping | None = Field(
        default=None, description="pcie: devices map a dma-buf through PCIe (BAR1), also where there is a faster way."
    )
    commit: Commit | None = Field(
        default=None, description="required: one writer fills the chunks and commits them, and readers wait for that."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_no_pool(cls, written: object) -> object:
        if isinstance(written, dict) and POOLS.group.noun in written:
            note, help = POOLS.unusable["exports"]
            raise InvalidValue("MT101", note, help=help)
        return written

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if not self.what:
            examples = [f"'{{{key}: NAME, via: {usual_transport(kind)}}}'" for key, kind in ALL.items()]
            message = f"an export names {enumerated(kind.article for kind in ALL.values())}"
            raise InvalidValue("MT102", message, help=f"write {enumerated(examples)}")
        if len(self.what) > 1:
            both = " and ".join(f"{kind} {str(reference)!r}" for kind, reference in self.what)
            raise InvalidValue(
                "MT103", f"an export names one object, found {both}", help="write an export for each of them"
            )
        return self

    @property
    def what(self) -> list[tuple[str, Reference]]:
        """Key and reference of each exported object; a valid entry has one."""
        found = ((key, getattr(self, key)) for key in ALL)
        return [(key, reference) for key, reference in found if reference]


def usual_transport(kind: Kind) -> Via:
    """Transport that messages suggest for a kind."""
    return kind.transports[0] if isinstance(kind, ExportKind) else DMABUF
