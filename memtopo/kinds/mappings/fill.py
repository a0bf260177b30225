"""Amounts that follow from the map: the number of chunks that fill a range, and the size of a range that fits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm
from typing import Any

from msgspec import Struct

from memtopo.common.units import by_key, exact, rounded_up
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.types import Location
from memtopo.geometry.groups import ChunkGroup, RangeGroup, TakenShare
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.placements import Content, resolve_content
from memtopo.kinds.resolution import Refused, collected
from memtopo.language.names import parse_reference
from memtopo.language.scalars import LARGEST_COUNT

_UNBOUNDED = 1 << 47
"""Size in bytes of a range whose own size is not known yet: all addresses of a process."""


class MapEntries:
    """Entries of `map` and elastic ranges, found once for all chunks whose number follows from them.

    `known` are the groups of the other chunks by name; None for entries with an error.
    """

    def __init__(self, scope: Scope, known: Mapping[str, ChunkGroup | None]) -> None:
        self.known = known
        self.section: Mapping[str, Sequence[Any]] = scope.spec.section("map")
        self.places: dict[str, list[tuple[str, int]]] = {}
        """Key and index of the entries that name chunks as a whole, by chunk."""
        self.keys: dict[str, str] = {}
        """First key of each range."""
        self.uniform: set[str] = set()
        """Keys of which each range has the same mappings, as with `each`."""
        self._names: dict[str, set[str]] = {}
        self._chunks = scope.spec.section("chunks")
        self._elastic = _elastic_ranges(scope)
        for key, entries in self.section.items():
            name = parse_reference(key).name
            self.keys.setdefault(name, key)
            names = self._names.setdefault(name, set())
            for nth, entry in enumerate(entries):
                names.add(entry.chunk.name)
                if entry.each is not None or entry.stride is not None:
                    self.uniform.add(key)
                if entry.chunk.first is None:
                    self.places.setdefault(entry.chunk.name, []).append((key, nth))
        self._granules: dict[str, tuple[int, bool]] = {}

    def elastic_ranges(self, chunk: str) -> Iterator[str]:
        """Names of the elastic ranges that can have a chunk, in order: ranges that name it, ones that name none."""
        return (name for _, name in sorted(self._elastic.get(chunk, []) + self._elastic.get("", [])))

    def granule(self, name: str) -> tuple[int, bool]:
        """Largest granule of the known chunks in a range, and true if it has chunks that are imported."""
        if name not in self._granules:
            names = self._names[name]
            units = [group.granule for each in names if (group := self.known.get(each))]
            self._granules[name] = max(units, default=0), any(each not in self._chunks for each in names)
        return self._granules[name]


def _elastic_ranges(scope: Scope) -> Mapping[str, list[tuple[int, str]]]:
    """Positions and names of elastic ranges by the chunks that they name, or by an empty name if they name none."""
    found: dict[str, list[tuple[int, str]]] = {}
    for position, (name, range_) in enumerate(scope.spec.section("ranges").items()):
        if range_.elastic:
            for chunk in dict.fromkeys(range_.elastic.chunks or [""]):
                found.setdefault(chunk, []).append((position, name))
    return found


class SizedChunks(Struct, frozen=True):
    """Chunks of an entry before their number is known: of `size` bytes each, in whole granules."""

    name: str
    path: Path
    number_path: Path
    """Path of the largest number of chunks in a spec."""
    locations: tuple[Location, ...]
    granule: int
    size: int


class ChunkNumber(Struct, frozen=True):
    """Number of chunks, the largest one of elastic chunks, with the share or the range that it follows from."""

    number: int
    share: TakenShare | None = None
    filled: str = ""


class _Place(Struct, frozen=True):
    """Entry of `map` that names chunks as a whole, in `members` ranges of `size` bytes each.

    `uniform` is true if each range has the same mappings, as with `each`.
    """

    key: str
    nth: int
    entries: Sequence[Any]
    members: int
    size: int
    uniform: bool


def filled_count(scope: Scope, chunks: SizedChunks, entries: MapEntries) -> ChunkNumber:
    """Number of chunks that fill the place where they are mapped.

    Raises `Refused` with MT314 if there is no such place or its size is not known.
    """
    named = entries.places.get(chunks.name, [])
    sized = [(key, nth) for key, nth in named if not _fitted(scope, key)]
    if named and not sized:
        range_ = parse_reference(named[0][0]).name
        message = f"the count of {chunks.name!r} depends on {range_!r}, whose size depends on its chunks"
        label = Label("and this from its chunks", (*scope.spec.at("ranges", range_), "size"))
        raise Refused(_open(chunks, message, "write one of them as a number", label))
    found: dict[int, str] = {}
    for key, nth in sized:
        place = _place(scope, chunks, entries, (key, nth))
        found.setdefault(_number(scope, chunks, place, entries), key)
    if len(found) == 1:
        return _filled(chunks, *found.popitem())
    if found:
        first, second = list(found.items())[:2]
        needs = f"{first[1]!r} needs {first[0]:,} chunks, and {second[1]!r} {second[0]:,}"
        message = f"the count of {chunks.name!r} does not follow: {needs}"
        raise Refused(_open(chunks, message, "write a number of chunks"))
    if any(section in ("map", "ranges") for section, _ in scope.spec.left_out):
        raise Refused
    message = f"chunk {chunks.name!r} is not mapped as a whole, so its count cannot be computed from a range"
    help = f"map it into a range: 'map: {{kv: [{chunks.name}]}}', or write a number of chunks"
    raise Refused(_open(chunks, message, help))


def elastic_count(scope: Scope, chunks: SizedChunks, entries: MapEntries) -> ChunkNumber:
    """Number of chunks that their elastic ranges have room for.

    Raises `Refused` with MT314 if there are none, or if `map` names one of them.
    """
    number, names, ranges = 0, [], scope.spec.section("ranges")
    for name in entries.elastic_ranges(chunks.name):
        if ranges[name].size == "fill":
            raise Refused  # the range has the error
        if key := entries.keys.get(name):
            message = f"the number of {chunks.name!r} does not follow from {name!r}, in which other chunks are mapped"
            label = Label("mapped here", scope.spec.at("map", key), "key")
            raise Refused(_open(chunks, message, "write a number of chunks", label))
        range_ = ranges[name]
        others = (entries.known.get(each) for each in (range_.elastic.zero, *range_.elastic.chunks))
        unit = max([chunks.granule, *(group.granule for group in others if group)])
        size = rounded_up(range_.size.bytes(unit), unit)
        number += int((range_.count or 1) * (size // chunks.size))
        names.append(name)
    if names:
        return _filled(chunks, number, " and ".join(names))
    if any(section == "ranges" for section, _ in scope.spec.left_out):
        raise Refused
    message = f"no elastic range can contain chunk {chunks.name!r}, so its maximum number cannot be computed"
    raise Refused(_open(chunks, message, "declare a range with 'elastic: true', or write a number of chunks"))


def equal_parts(scope: Scope, entries: MapEntries, name: str) -> int:
    """Number of which that of some chunks is a multiple, so that ranges without a size have equal parts of them."""
    parts = 1
    for key, nth in entries.places.get(name, ()):
        entry = entries.section[key][nth]
        if _fitted(scope, key) and len(entries.section[key]) == 1 and entry.each is None and entry.stride is None:
            parts = lcm(parts, _members(scope, key))
    return parts


def keys_by_range(scope: Scope) -> Mapping[str, Sequence[str]]:
    """Keys of `map` by the name of their range."""
    return by_key((parse_reference(key).name, key) for key in scope.slices)


def fitting_size(scope: Scope, name: str, keys: Sequence[str], count: int | None, unit: int) -> int:
    """Size of each of `count` ranges that fits what some keys of `map` map into it, in whole granules of `unit` bytes.

    Raises `Refused` with MT314 if that is not known.
    """
    path = (*scope.spec.at("ranges", name), "size")
    largest = 0
    for key in keys:
        slices = scope.slices[key]
        filled = next((each for each in slices if each.each == "fill"), None)
        if filled:
            message = f"the size of {name!r} follows from its mappings, and 'each: fill' from its size"
            label = Label("as many as fit", (*filled.path, "each"))
            raise Refused(Diagnostic("MT314", message, path, labels=(label,), help="write one of them as a number"))
        members, counted = count or 1, count is not None
        plain = name, path[:-1], _UNBOUNDED, unit, 0, 0
        group = RangeGroup(*plain, fixed=False, count=members, counted=counted, size=_UNBOUNDED)
        content, diagnostics = collected(resolve_content(scope.spec.at("map", key), group, slices))
        if not content.complete:
            raise Refused(*diagnostics)
        largest = max(largest, _member_size(content, unit, path))
    if not largest:
        message = f"nothing is mapped into {name!r}, so its size cannot be computed"
        raise Refused(Diagnostic("MT314", message, path, help="write a size, or map chunks into it"))
    return rounded_up(largest, unit)


def _member_size(content: Content, unit: int, path: Path) -> int:
    """Bytes of each range that a key of `map` fills: ranges that are filled one after another have equal parts."""
    end = max(run.end for run in content.runs)
    members = content.stop - content.first
    if content.uniform or members == 1:
        return end
    if end % (members * unit) == 0:
        return end // members
    message = f"{exact(end)} of chunks cannot be divided into equal parts of whole granules for {members:,} ranges"
    raise Refused(Diagnostic("MT314", message, path, help="write a size, or map them with 'each'"))


def _fitted(scope: Scope, key: str) -> bool:
    """Return true if the range of a key of `map` is as large as what is mapped into it."""
    range_ = scope.spec.section("ranges").get(parse_reference(key).name)
    return range_ is not None and range_.size == "fill"


def _members(scope: Scope, key: str) -> int:
    """Number of ranges that a key of `map` names."""
    reference = parse_reference(key)
    if reference.first is None:
        return scope.spec.section("ranges")[reference.name].count or 1
    return (reference.stop or 0) - reference.first


def _place(scope: Scope, chunks: SizedChunks, written: MapEntries, at: tuple[str, int]) -> _Place:
    """The place of an entry. Raises `Refused` if the size of its range is not known."""
    key, nth = at
    reference, entries = parse_reference(key), written.section[key]
    range_ = scope.spec.section("ranges").get(reference.name)
    if range_ is None:
        raise Refused
    members = _members(scope, key)
    largest, imported = written.granule(reference.name)
    unit = max(chunks.granule, largest)
    if imported and (range_.size.in_granules or range_.round):
        message = f"the size of {reference.name!r} depends on imported chunks, and the count of {chunks.name!r} on it"
        raise Refused(_open(chunks, message, f"write the size of {reference.name!r} in bytes"))
    size = rounded_up(range_.size.bytes(unit), unit)
    return _Place(key, nth, entries, members, size, key in written.uniform)


def _number(scope: Scope, chunks: SizedChunks, place: _Place, entries: MapEntries) -> int:
    """Number of chunks that fill a place: as many as `each` gives, or all that fit between the entries around it."""
    entry = place.entries[place.nth]
    if isinstance(entry.each, int):
        return int(entry.each * place.members)
    whole = place.size if place.uniform else place.size * place.members
    bounds = _bounds(chunks, place, whole, entries)
    if bounds is None:
        message = f"the entries next to {chunks.name!r} in {place.key!r} are imported or depend on other amounts"
        help = f"write '{{chunk: {chunks.name}, offset: …}}', and an offset for the entry after it"
        raise Refused(_open(chunks, message, help, Label("mapped here", scope.spec.at("map", place.key, place.nth))))
    start, end = bounds
    stride = entry.stride.bytes(chunks.granule) if entry.stride else chunks.size
    room = (whole if entry.each == "fill" else end) - start
    fits = (room - chunks.size) // stride + 1 if room >= chunks.size else 0
    return int(fits * place.members if entry.each == "fill" else fits)


def _bounds(chunks: SizedChunks, place: _Place, whole: int, entries: MapEntries) -> tuple[int, int] | None:
    """Offsets between which an entry can be: the end of the one before it, and the beginning of those after it."""
    own = place.entries[place.nth]
    start = own.offset.bytes(chunks.granule) if own.offset is not None else _end_before(place, entries)
    after = 0
    for nth in range(place.nth + 1, len(place.entries)):
        entry = place.entries[nth]
        if entry.offset is not None:
            whole = entry.offset.bytes(chunks.granule)
            break
        length = _end(entry, 0, place.size, entries)
        if length is None:
            return None
        after += length
    return None if start is None else (start, whole - after)


def _end_before(place: _Place, entries: MapEntries) -> int | None:
    """End of the entry before a place, from the nearest one with an offset on; None if it is not known."""
    first = place.nth
    while first and entries.known.get(place.entries[first - 1].chunk.name):
        first -= 1
        if place.entries[first].offset is not None:
            break
    if first and (first == place.nth or place.entries[first].offset is None):
        return None
    end: int | None = 0
    for nth in range(first, place.nth):
        end = _end(place.entries[nth], end, place.size, entries)
    return end


def _end(entry: Any, start: int | None, size: int, entries: MapEntries) -> int | None:
    """Offset after the mappings of an entry in each range of `size` bytes; None if it is not known."""
    group = entries.known.get(entry.chunk.name)
    if entry.offset is not None:
        start = entry.offset.bytes(group.granule if group else 1) if not entry.offset.in_granules or group else None
    if group is None or start is None:
        return None
    stride = entry.stride.bytes(group.granule) if entry.stride else group.size
    number = group.count if entry.chunk.first is None else entry.chunk.stop - entry.chunk.first
    if isinstance(entry.each, int):
        number = entry.each
    elif entry.each == "fill":
        number = max(0, (size - start - group.size) // stride + 1)
    return int(start + (number - 1) * stride + group.size)


def _filled(chunks: SizedChunks, number: int, key: str) -> ChunkNumber:
    """Number of chunks that fill ranges. Raises `Refused` if these have room for none, or for too many."""
    if number > LARGEST_COUNT:
        message = f"{key!r} has room for {number:,} chunks, more than the {LARGEST_COUNT:,} allowed in one spec"
        raise Refused(Diagnostic("MT109", message, chunks.number_path, help="make the chunks larger"))
    if number <= 0:
        message = f"{key!r} has no room for a chunk of {exact(chunks.size)}, so {chunks.name!r} would have no chunks"
        raise Refused(_open(chunks, message, "make the range larger, or the chunks smaller"))
    return ChunkNumber(number, filled=key)


def _open(chunks: SizedChunks, message: str, help: str, *labels: Label) -> Diagnostic:
    return Diagnostic("MT314", message, chunks.number_path, labels=labels, help=help)
