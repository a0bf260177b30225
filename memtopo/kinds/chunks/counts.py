"""Number of chunks as an entry writes it: a number, one that follows, or a smallest and a largest one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field, WrapValidator

from memtopo.common.units import Share
from memtopo.diagnostics.model import Path
from memtopo.language.entries import Entry
from memtopo.language.fields import ChunkCount, LeastCount, chunk_count


class ElasticCount(Entry):
    """Number of chunks that a program creates and releases while the layout exists."""

    min: LeastCount = Field(
        default=0,
        description="Number of chunks that are created with the layout, and stay: 16; or 85%, if max is in percent.",
    )
    max: ChunkCount = Field(
        description="Largest number of chunks: 64, which have to fit into the memory of the machine; or 85% of the "
        "memory that all other entries leave; or fill, as many as have room in their elastic ranges."
    )


_Counts = int | Share | Literal["fill"] | ElasticCount


def _count(value: object, elastic: Callable[[object], ElasticCount]) -> _Counts:
    return chunk_count(value) if isinstance(value, str) else elastic(value)


if TYPE_CHECKING:
    Counts = _Counts
else:  # not a union, which would report the errors of each member
    Counts = Annotated[ElasticCount, WrapValidator(_count, json_schema_input_type=ChunkCount | ElasticCount)]


class Numbers(NamedTuple):
    """Numbers of chunks, or what they follow from: those created with the layout, and the largest.

    They are equal unless the chunks are `elastic`. `path` is that of the largest number. Chunks that are `counted` have
    numbers in their labels.
    """

    created: int | Share | Literal["fill"]
    largest: int | Share | Literal["fill"]
    path: Path
    counted: bool
    elastic: bool = False

    @property
    def follow(self) -> bool:
        """True if the largest number follows from ranges, or from the memory that is left."""
        return not isinstance(self.largest, int)


def written_numbers(count: Counts | None, path: Path, devices: int | None) -> Numbers:
    """Numbers of the chunks of the entry at `path`.

    Without `count` there is one, or one for each of the `devices` of a set.
    """
    if isinstance(count, ElasticCount):
        return Numbers(count.min, count.max, (*path, "count", "max"), counted=True, elastic=True)
    if count is None:
        return Numbers(devices or 1, devices or 1, path, counted=devices is not None)
    return Numbers(count, count, (*path, "count"), counted=True)
