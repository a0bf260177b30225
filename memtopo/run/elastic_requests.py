"""Requests to map and unmap chunks in elastic ranges, and the errors of those that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memtopo.common.errors import MemtopoError
from memtopo.common.outcomes import Exit
from memtopo.common.text import nearest
from memtopo.common.units import exact
from memtopo.kinds.elastic import ElasticContent, Mapped, Pool


class Refused(MemtopoError):
    """Request that a range or a pool cannot fulfil; no driver call was made."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True)
class MapRequest:
    """`count` chunks of a pool, to be mapped one after another from `offset` on."""

    offset: int
    pool: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class UnmapRequest:
    """`size` bytes from `offset` on, in which a program has mapped whole chunks without holes."""

    offset: int
    size: int
    release: bool = False


def offset_of(item: Mapped) -> int:
    """Offset of a mapping."""
    return item[0]


def leaving(content: ElasticContent, unmaps: Sequence[UnmapRequest]) -> list[Mapped]:
    """Mappings that requests unmap, in order of offset. Raises `Refused`."""
    if len(unmaps) == 1:
        return part(content, unmaps[0])
    found = sorted((item for each in unmaps for item in part(content, each)), key=offset_of)
    if any(one[0] == other[0] for one, other in pairwise(found)):
        raise Refused(f"range {content.label!r}: a batch unmaps the same chunk twice", hint="name each part once")
    return found


def part(content: ElasticContent, request: UnmapRequest) -> list[Mapped]:
    """Mappings in a part of a range, in order. Raises `Refused` unless it consists of whole chunks."""
    start, end, found = request.offset, request.offset + request.size, []
    if request.size <= 0:
        raise Refused(f"range {content.label!r}: {request.size:,} bytes are nothing to unmap")
    at, zero, mapped = start, content.zero, content.at
    while at < end:
        chunk = mapped.get(at)
        if chunk is None or chunk is zero:
            raise _not_mapped(content, at)
        found.append((at, chunk))
        at += chunk.size
    if at != end:
        last, chunk = found[-1]
        message = f"range {content.label!r}: {chunk.label!r} is mapped from {exact(last)} to {exact(at)}"
        raise Refused(message, hint="a chunk is unmapped as a whole: name its end, or its beginning")
    return found


def _not_mapped(content: ElasticContent, at: int) -> Refused:
    where = f"range {content.label!r}"
    if any(low <= at < high for low, high in content.fixed):
        return Refused(f"{where}: what is mapped at {exact(at)} is fixed by the spec", hint="unmap other parts")
    inside = next((item for item in content.present(at, at + 1) if item[1] is not content.zero), None)
    if inside is None:
        return Refused(f"{where}: nothing is mapped at {exact(at)}", hint="'mappings' has what is mapped")
    hint = "a chunk is unmapped as a whole: name its beginning"
    return Refused(f"{where}: {exact(at)} is inside of {inside[1].label!r}, mapped at {exact(inside[0])}", hint=hint)


def require_fit(content: ElasticContent, request: MapRequest, pools: Mapping[str, Pool]) -> None:
    """Raise `Refused` for a request that the range could never fulfil."""
    where = f"range {content.label!r}"
    if request.pool not in content.pools:
        raise _unknown_pool(content, request.pool)
    pool = pools[request.pool]
    if request.count < 1:
        raise Refused(f"{where}: {request.count:,} chunks are nothing to map", hint="map at least one")
    unit = max(pool.granule, content.zero.size if content.zero else 0)
    if not 0 <= request.offset < content.size:
        raise Refused(
            f"{where} begins at 0 and ends at {exact(content.size)}: {exact(request.offset)} is outside of it"
        )
    if request.offset % unit:
        near = request.offset - request.offset % unit
        message = f"{where}: the offset {exact(request.offset)} is no multiple of {exact(unit)}"
        raise Refused(message, hint=f"the nearest ones are {exact(near)} and {exact(near + unit)}")
    end = request.offset + request.count * pool.size
    if end > content.size:
        fits = (content.size - request.offset) // pool.size
        message = f"{where} ends at {exact(content.size)}, and {request.count:,} chunks {pool.name!r} would end at"
        raise Refused(f"{message} {exact(end)}", hint=f"from {exact(request.offset)} on, {fits:,} fit")
    for piece in content.pieces[1:]:
        if request.offset < piece.start < end and (piece.start - request.offset) % pool.size:
            message = f"{where}: a chunk {pool.name!r} would lie across {exact(piece.start)}, where the access changes"
            raise Refused(message, hint="map it on one side: the driver grants access to whole chunks (fact 20)")


def _unknown_pool(content: ElasticContent, name: str) -> Refused:
    meant = nearest(name, content.pools)
    hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(content.pools) or 'none'}"
    return Refused(f"range {content.label!r} has no elastic chunks {name!r}", hint=hint)


def require_free(
    content: ElasticContent, maps: Sequence[MapRequest], leaving: Sequence[Mapped], pools: Mapping[str, Pool]
) -> None:
    """Raise `Refused` if something is mapped where chunks are to be mapped, or the batch maps two chunks there."""
    gone = {offset for offset, _ in leaving}
    spans = sorted((each.offset, each.offset + each.count * pools[each.pool].size) for each in maps)
    last = 0
    for start, end in spans:
        if found := content.taken(start, end, gone):
            what = f"{found[2]!r} is mapped" if found[2] else "the spec itself maps something"
            message = f"range {content.label!r}: {what} from {exact(found[0])} to {exact(found[1])}"
            raise Refused(message, hint="unmap it before, or in the same batch" if found[2] else "map elsewhere")
        if start < last:
            message = f"range {content.label!r}: a batch maps two chunks at {exact(start)}"
            raise Refused(message, hint=f"what is before it ends at {exact(last)}")
        last = end


def require_chunks(pool: Pool, count: int, returning: int) -> None:
    """Raise `Refused` if a pool cannot have that many chunks more, of which the batch itself returns some."""
    left = max(0, pool.limit - len(pool.created)) + len(pool.free) + returning
    if count > left:
        message = f"chunks {pool.name!r}: {count:,} are requested, and {left:,} of {pool.limit:,} are left"
        raise Refused(message, hint="unmap some, or increase 'max' in the spec")
