"""Where chunks are mapped, and who may use them there."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag

from memtopo.common.units import Size
from memtopo.kinds.entries.base import Entry
from memtopo.language.fields import Amount, ChunkReference, Grants, PositiveAmount, one_or_more


def _map_entry(value: object) -> object:
    return {"chunk": value} if isinstance(value, str) else value


def _shape(value: object) -> str | None:
    if isinstance(value, dict):
        return "<grant>"
    return "<parts>" if isinstance(value, list) else None


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


Shaped = Annotated[
    Annotated[Grants, Tag("<grant>")] | Annotated[list[Part], Tag("<parts>")],
    Discriminator(_shape, custom_error_type="access", custom_error_message="access"),
]
_Mapped = Annotated[MapEntry, BeforeValidator(_map_entry, json_schema_input_type=ChunkReference | MapEntry)]
_OneOrMoreMapped = _Mapped | Annotated[list[_Mapped], Field(min_length=1)]
MapList = Annotated[list[_Mapped], BeforeValidator(one_or_more, json_schema_input_type=_OneOrMoreMapped)]
