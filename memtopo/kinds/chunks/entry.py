"""Entry of `chunks` as a spec writes it, and its named parts: `signal: 4KiB, data: rest`, in order without gaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, WrapValidator

from memtopo.common.units import NamedPart, Share, Size, exact
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Path
from memtopo.driver.types import PROPERTY_FLAGS
from memtopo.kinds.resolution import Refused
from memtopo.language.entries import Entry
from memtopo.language.fields import (
    REST,
    Alternatives,
    BooleanOrElse,
    ChunkCount,
    Devices,
    Handles,
    LeastCount,
    OwnName,
    PartSize,
    Rounding,
    SizeOrShare,
)
from memtopo.language.limits import LARGEST_PARTS
from memtopo.language.scalars import chunk_count


class ElasticCount(Entry):
    """Number of chunks that a program creates and releases while the layout exists."""

    min: LeastCount = Field(
        default=0,
        description="Number of chunks that are created with the layout and kept: 16; or 85%, if max is in percent.",
    )
    max: ChunkCount = Field(
        description="Maximum number of chunks: 64, which must fit in the memory of the machine; or 85% of the memory "
        "left by all other entries; or fill, as many as fit in their elastic ranges."
    )


_Counts = int | Share | Literal["fill"] | ElasticCount


def _count(value: object, elastic: Callable[[object], ElasticCount]) -> _Counts:
    return chunk_count(value) if isinstance(value, str) else elastic(value)


if TYPE_CHECKING:
    Counts = _Counts
else:  # not a union, which would report the errors of each member
    Counts = Annotated[ElasticCount, WrapValidator(_count, json_schema_input_type=ChunkCount | ElasticCount)]


class Chunk(Entry):
    """Physical memory on a GPU or the host; with `count`, equal chunks distributed round-robin over the locations."""

    location: Devices = Field(
        description="Location of the memory: a device, a set such as gpus, or several devices, over which chunks are "
        "distributed round-robin."
    )
    size: SizeOrShare = Field(
        description="Bytes of each chunk, a multiple of the granularity of its properties: 2MiB, or 1 granule; or "
        "90% of the memory left by all other entries."
    )
    count: Counts | None = Field(
        default=None,
        description="Number of chunks: page becomes page.0, page.1 and so on; or fill, as many as their "
        "range needs; or 90% of the memory left by all other entries; or {min: 0, max: 64}.",
    )
    handles: Handles = Field(
        default=[], description="Handle types for export to other processes: fd, fabric, both, or fabric else fd."
    )
    rdma: BooleanOrElse = Field(
        default=False, description="If true, network cards can access the memory by GPUDirect RDMA; or true else false."
    )
    compressible: BooleanOrElse = Field(
        default=False, description="If true, the GPU can compress the memory; or true else false."
    )
    round: Rounding | None = Field(default=None, description="up: round the size up to a multiple of the granularity.")
    parts: Parts | None = Field(
        default=None, description="Named parts of each chunk, in order: {signal: 4KiB, data: rest}."
    )

    @property
    def elastic(self) -> ElasticCount | None:
        """Smallest and largest number of chunks that a program creates and releases; None for other chunks."""
        return self.count if isinstance(self.count, ElasticCount) else None

    @property
    def largest(self) -> int | Share | Literal["fill"] | None:
        """Largest number of chunks, or what it follows from; None for an entry without a count."""
        return self.count.max if isinstance(self.count, ElasticCount) else self.count

    @property
    def number_key(self) -> tuple[str, ...]:
        """Keys that lead to the largest number of chunks."""
        return ("count", "max") if self.elastic else ("count",)

    @property
    def alone(self) -> bool:
        """True if every equal entry has equal chunks: nothing in them depends on their name or on other entries.

        A handle type or a property with alternatives depends on the trials of the machine.
        """
        amounts = isinstance(self.largest, int | None) and not isinstance(self.size, Share)
        flags = (getattr(self, word) for word in PROPERTY_FLAGS)
        return (
            amounts and not self.parts and not any(isinstance(each, Alternatives) for each in (*self.handles, *flags))
        )

    @property
    def value(self) -> tuple[object, ...]:
        """Values of all fields, by which entries are equal."""
        return tuple([tuple(each) if isinstance(each, (list, dict)) else each for each in self.__dict__.values()])


def _checked(parts: dict[str, Size | str]) -> dict[str, Size | str]:
    if not parts:
        raise InvalidValue("MT103", "expected at least one part, found none", help="write 'signal: 4KiB, data: rest'")
    if len(parts) > LARGEST_PARTS:
        raise InvalidValue("MT109", f"{len(parts):,} parts are more than the {LARGEST_PARTS} that one chunk may have")
    if list(parts.values()).count(REST) > 1:
        raise InvalidValue("MT204", f"{REST!r} is the size of several parts", help="give all but one a size in bytes")
    return parts


Parts = Annotated[dict[OwnName, PartSize], AfterValidator(_checked)]


def resolve_parts(path: Path, parts: Mapping[str, Size | str] | None, size: int, unit: int) -> tuple[NamedPart, ...]:
    """Parts of chunks of `size` bytes with granules of `unit` bytes. Raises `Refused` with MT313 if they do not fit."""
    if not parts:
        return ()
    sizes = {name: each.bytes(unit) if isinstance(each, Size) else 0 for name, each in parts.items()}
    left = size - sum(sizes.values())
    rest = next((name for name, bytes_ in sizes.items() if not bytes_), None)
    what, where = f"{path[-1]!r} has {exact(size)}", (*path, "parts")
    if left < 0:
        message, total = f"{what}, and its parts have {exact(size - left)}", -(-(size - left) // unit) * unit
        help = f"make the parts smaller, or write 'size: {exact(total)}' or more"
        raise Refused(Diagnostic("MT313", message, where, help=help))
    if rest and not left:
        message = f"{what}, and its other parts leave nothing for {rest!r}"
        raise Refused(Diagnostic("MT313", message, (*where, rest), help=f"omit {rest!r}, or make other parts smaller"))
    if rest:
        sizes[rest] = left
    return tuple(map(NamedPart, sizes, accumulate(sizes.values(), initial=0), sizes.values()))
