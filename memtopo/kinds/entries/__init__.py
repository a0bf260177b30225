"""The entries of a spec's sections: what each may say, and what it means as typed data."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import Field

from memtopo.kinds.entries.base import Entry
from memtopo.kinds.entries.foreign import External, ExternalPart, Semaphore
from memtopo.kinds.entries.memory import Buffer, Chunk, Event, Managed, Range
from memtopo.kinds.entries.placing import MapEntry, MapList, Part, Shaped
from memtopo.kinds.entries.sharing import Export, Import
from memtopo.language.fields import Gpus, Identities, ProcessCount

__all__ = [
    "SECTIONS",
    "Buffer",
    "Chunk",
    "Event",
    "Export",
    "External",
    "ExternalPart",
    "Import",
    "Managed",
    "MapEntry",
    "Part",
    "Process",
    "Range",
    "Section",
    "Semaphore",
]


class Process(Entry):
    """What a process has besides sections."""

    count: ProcessCount | None = Field(default=None, description="How many of it: reader becomes reader.0 and so on.")
    visible: Gpus = Field(default=[], description="The only GPUs that it is to see; else those that memtopo sees.")


class Section(NamedTuple):
    """How a section is read: its entries, the model whose keys they have, and whether its own keys refer to others.

    What its entries have by name themselves, in one of their keys, is `inside`.
    """

    entry: Any
    model: type[Entry] | None
    referring: bool
    inside: tuple[str, type[Entry]] | None = None

    def keys(self, loc: tuple[str | int, ...]) -> list[str]:
        """The keys that may stand where something in the section is; `loc` begins with an entry's name."""
        model = self.inside[1] if self.inside and loc[1:2] == (self.inside[0],) and len(loc) > 2 else self.model  # noqa: PLR2004
        return [field.alias or key for key, field in model.model_fields.items()] if model else []


SECTIONS = {
    "devices": Section(Identities, None, referring=False),
    "ranges": Section(Range, Range, referring=False),
    "chunks": Section(Chunk, Chunk, referring=False),
    "map": Section(MapList, MapEntry, referring=True),
    "access": Section(Shaped, Part, referring=True),
    "buffers": Section(Buffer, Buffer, referring=False),
    "managed": Section(Managed, Managed, referring=False),
    "events": Section(Event, Event, referring=False),
    "external": Section(External, External, referring=False, inside=("buffers", ExternalPart)),
    "semaphores": Section(Semaphore, Semaphore, referring=False),
    "exports": Section(Export, Export, referring=False),
    "imports": Section(Import, Import, referring=False),
}
