"""Amounts that follow from the map: the number of chunks that fill a range, and the size of a range that fits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm
from typing import Any, NamedTuple

from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.geometry.sizing import rounded_to_multiple
from memtopo.kinds.kind import Scope
from memtopo.kinds.mappings.placements import Content, resolve_content
from memtopo.kinds.resolution import Resolution, collected
from memtopo.language.fields import LARGEST_COUNT, parse_reference

_UNBOUNDED = 1 << 47
"""Size in bytes of a range whose own size is not known yet: all addresses of a process."""


Known = Mapping[str, ChunkGroup | None]
"""Groups of chunks by name; None for entries with an error."""


class MapEntries:
    """Entries of `map` and elastic ranges, found once for all chunks whose number follows from them."""

    def __init__(self, scope: Scope) -> None:
        self.section: Mapping[str, Sequence[Any]] = scope.spec.section("map")
        self.places: dict[str, list[tuple[str, int]]] = {}
        """Key and index of the entries that name chunks as a whole, by chunk."""
        self.keys: dict[str, str] = {}
        """First key of each range."""
        self._names: dict[str, set[str]] = {}
        self._chunks = scope.spec.section("chunks")
        self._elastic = _elastic_ranges(scope)
        for key, entries in self.section.items():
            name = parse_reference(key).name
            self.keys.setdefault(name, key)
            names = self._names.setdefault(name, set())
            for nth, entry in enumerate(entries):
                names.add(entry.chunk.name)
                if entry.chunk.first is None:
                    self.places.setdefault(entry.chunk.name, []).append((key, nth))
        self._granules: dict[str, tuple[int, bool]] = {}
        self._alike: dict[str, bool] = {}

    def elastic_ranges(self, chunk: str) -> Iterator[str]:
        """Names of the elastic ranges that can have a chunk, in order: those that name it, and those that name none."""
        return (name for _, name in sorted(self._elastic.get(chunk, []) + self._elastic.get("", [])))

    def alike(self, key: str) -> bool:
        """Return true if each range of a key has the same mappings, as with `each`."""
        if key not in self._alike:
            self._alike[key] = any(entry.each is not None or entry.stride is not None for entry in self.section[key])
        return self._alike[key]

    def granule(self, name: str, known: Known) -> tuple[int, bool]:
        """Largest granule of the known chunks in a range, and true if it has chunks that are imported."""
        if name not in self._granules:
            names = self._names[name]
            units = [group.granule for each in names if (group := known.get(each))]
            self._granules[name] = max(units, default=0), any(each not in self._chunks for each in names)
        return self._granules[name]


def _elastic_ranges(scope: Scope) -> Mapping[str, list[tuple[int, str]]]:
    """Positions and names of elastic ranges by the chunks that they name, of those that name none by an empty name."""
    found: dict[str, list[tuple[int, str]]] = {}
    for position, (name, range_) in enumerate(scope.spec.section("ranges").items()):
        if range_.elastic:
            for chunk in dict.fromkeys(range_.elastic.chunks or [""]):
                found.setdefault(chunk, []).append((position, name))
    return found


class Filling(NamedTuple):
    """Chunks whose number follows from ranges; it is written at `path`."""

    name: str
    size: int
    unit: int
    path: Path


class _Place(NamedTuple):
    """Entry of `map` that names chunks as a whole, in `members` ranges of `size` bytes each.

    `alike` is true if each range has the same mappings, as with `each`.
    """

    key: str
    nth: int
    entries: Sequence[Any]
    members: int
    size: int
    alike: bool


def filled_count(
    scope: Scope, filling: Filling, entries: MapEntries, known: Known
) -> Resolution[tuple[int, str] | None]:
    """Number of chunks that fill the place where they are mapped, and the key of this place.

    `known` are the groups of the other chunks. Yields MT314 if there is no such place or its size is not known.
    """
    named = entries.places.get(filling.name, [])
    sized = [(key, nth) for key, nth in named if not _fitted(scope, key)]
    if named and not sized:
        yield _circular(scope, filling, named[0][0])
        return None
    found: dict[int, str] = {}
    for key, nth in sized:
        place = _place(scope, filling, entries, (key, nth), known)
        if isinstance(place, Diagnostic):
            yield place
        number = (yield from _number(scope, filling, place, known)) if isinstance(place, _Place) else None
        if number is None:
            return None
        found.setdefault(number, key)
    if len(found) == 1:
        ((number, key),) = found.items()
        return (number, key) if not (yield from _refused(filling, number, key)) else None
    if found:
        yield _different(filling, found)
    elif not any(section in ("map", "ranges") for section, _ in scope.spec.left_out):
        message = f"chunk {filling.name!r} is not mapped as a whole, so that its count does not follow from a range"
        help = f"map it into a range: 'map: {{kv: [{filling.name}]}}', or write a number of chunks"
        yield _open(filling, message, help)
    return None


def elastic_count(
    scope: Scope, filling: Filling, entries: MapEntries, known: Known
) -> Resolution[tuple[int, str] | None]:
    """Number of chunks that their elastic ranges have room for, and the names of these ranges.

    Yields MT314 if there are none, or if `map` names one of them.
    """
    number, names, ranges = 0, [], scope.spec.section("ranges")
    for name in entries.elastic_ranges(filling.name):
        if ranges[name].size == "fill":
            return None  # refused with the range
        if key := entries.keys.get(name):
            yield _mapped_in(scope, filling, name, key)
            return None
        number += _elastic_room(filling, ranges[name], known)
        names.append(name)
    if names:
        found = number, " and ".join(names)
        return found if not (yield from _refused(filling, *found)) else None
    if not any(section == "ranges" for section, _ in scope.spec.left_out):
        message = f"no elastic range can have chunk {filling.name!r}, so that its largest number does not follow"
        yield _open(filling, message, "declare a range with 'elastic: true', or write a number of chunks")
    return None


def _mapped_in(scope: Scope, filling: Filling, name: str, key: str) -> Diagnostic:
    """Diagnostic of other chunks that are mapped in an elastic range, which leave room that is not known."""
    message = f"the number of {filling.name!r} does not follow from {name!r}, in which other chunks are mapped"
    label = Label("mapped here", scope.spec.at("map", key), "key")
    return _open(filling, message, "write a number of chunks", label)


def _elastic_room(filling: Filling, range_: Any, known: Known) -> int:
    """Number of chunks that elastic ranges of one entry have room for."""
    others = (known.get(each) for each in (range_.elastic.zero, *range_.elastic.chunks))
    unit = max((group.granule for group in others if group), default=0)
    unit = max(filling.unit, unit)
    size = rounded_to_multiple(range_.size.bytes(unit), unit, rounding=True) or 0
    return int((range_.count or 1) * (size // filling.size))


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
    found: dict[str, list[str]] = {}
    for key in scope.slices:
        found.setdefault(parse_reference(key).name, []).append(key)
    return found


def fitting_size(scope: Scope, name: str, keys: Sequence[str], count: int | None, unit: int) -> Resolution[int | None]:
    """Size of each of `count` ranges that fits what some keys of `map` map into it, in whole granules of `unit` bytes.

    Yields MT314 if that is not known.
    """
    path = (*scope.spec.at("ranges", name), "size")
    largest = 0
    for key in keys:
        slices = scope.slices[key]
        filled = next((each for each in slices if each.each == "fill"), None)
        if filled:
            message = f"the size of {name!r} follows from its mappings, and 'each: fill' from its size"
            label = Label("as many as fit", (*filled.path, "each"))
            yield Diagnostic("MT314", message, path, labels=(label,), help="write one of them as a number")
            return None
        group = RangeGroup(
            name, path[:-1], count or 1, count is not None, _UNBOUNDED, _UNBOUNDED, unit, 0, 0, fixed=False
        )
        content, diagnostics = collected(resolve_content(scope.spec.at("map", key), group, slices))
        if not content.complete:
            yield from diagnostics
            return None
        size = yield from _member_size(content, unit, path)
        if size is None:
            return None
        largest = max(largest, size)
    if not largest:
        message = f"nothing is mapped into {name!r}, so that its size does not follow"
        yield Diagnostic("MT314", message, path, help="write a size, or map chunks into it")
        return None
    return rounded_to_multiple(largest, unit, rounding=True)


def _member_size(content: Content, unit: int, path: Path) -> Resolution[int | None]:
    """Bytes of each range that a key of `map` fills: ranges that are filled one after another have equal parts."""
    end = max(run.end for run in content.runs)
    members = content.stop - content.first
    if content.alike or members == 1:
        return end
    if end % (members * unit) == 0:
        return end // members
    message = f"{exact(end)} of chunks are no equal parts of whole granules for {members:,} ranges"
    yield Diagnostic("MT314", message, path, help="write a size, or map them with 'each'")
    return None


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


def _circular(scope: Scope, filling: Filling, key: str) -> Diagnostic:
    name = parse_reference(key).name
    message = f"the count of {filling.name!r} follows from {name!r}, whose size follows from its chunks"
    label = Label("and this from its chunks", (*scope.spec.at("ranges", name), "size"))
    return _open(filling, message, "write one of them as a number", label)


def _place(
    scope: Scope, filling: Filling, written: MapEntries, at: tuple[str, int], known: Known
) -> _Place | Diagnostic | None:
    """The place of an entry; a diagnostic if the size of its range is not known, and None if the range has an error."""
    key, nth = at
    reference, entries = parse_reference(key), written.section[key]
    range_ = scope.spec.section("ranges").get(reference.name)
    if range_ is None:
        return None
    members = _members(scope, key)
    largest, imported = written.granule(reference.name, known)
    unit = max(filling.unit, largest)
    if imported and (range_.size.in_granules or range_.round):
        message = f"the size of {reference.name!r} depends on imported chunks, and the count of {filling.name!r} on it"
        return _open(filling, message, f"write the size of {reference.name!r} in bytes")
    size = rounded_to_multiple(range_.size.bytes(unit), unit, rounding=True) or 0
    return _Place(key, nth, entries, members, size, written.alike(key))


def _number(scope: Scope, filling: Filling, place: _Place, known: Known) -> Resolution[int | None]:
    """Number of chunks that fill a place: those that `each` names, or all that fit between the entries around it."""
    entry = place.entries[place.nth]
    if isinstance(entry.each, int):
        return entry.each * place.members
    whole = place.size if place.alike else place.size * place.members
    bounds = _bounds(filling, place, whole, known)
    if bounds is None:
        message = f"the entries beside {filling.name!r} in {place.key!r} are imported or follow from other amounts"
        help = f"write '{{chunk: {filling.name}, offset: …}}', and an offset for the entry after it"
        yield _open(filling, message, help, Label("mapped here", scope.spec.at("map", place.key, place.nth)))
        return None
    start, end = bounds
    stride = entry.stride.bytes(filling.unit) if entry.stride else filling.size
    room = (whole if entry.each == "fill" else end) - start
    fits = (room - filling.size) // stride + 1 if room >= filling.size else 0
    return fits * place.members if entry.each == "fill" else fits


def _bounds(filling: Filling, place: _Place, whole: int, known: Known) -> tuple[int, int] | None:
    """Offsets between which an entry can be: the end of the one before it, and the beginning of those after it."""
    own = place.entries[place.nth]
    start = own.offset.bytes(filling.unit) if own.offset is not None else _end_before(place, known)
    after = 0
    for nth in range(place.nth + 1, len(place.entries)):
        entry = place.entries[nth]
        if entry.offset is not None:
            whole = entry.offset.bytes(filling.unit)
            break
        length = _end(entry, 0, place.size, known)
        if length is None:
            return None
        after += length
    return None if start is None else (start, whole - after)


def _end_before(place: _Place, known: Known) -> int | None:
    """End of the entry before a place, from the nearest one with an offset on; None if it is not known."""
    first = place.nth
    while first and known.get(place.entries[first - 1].chunk.name):
        first -= 1
        if place.entries[first].offset is not None:
            break
    if first and (first == place.nth or place.entries[first].offset is None):
        return None
    end: int | None = 0
    for nth in range(first, place.nth):
        end = _end(place.entries[nth], end, place.size, known)
    return end


def _end(entry: Any, start: int | None, size: int, known: Known) -> int | None:
    """Offset after the mappings of an entry in each range of `size` bytes; None if it is not known."""
    group = known.get(entry.chunk.name)
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


def _refused(filling: Filling, number: int, key: str) -> Resolution[bool]:
    """Yield a diagnostic and return true if a range has room for no chunk, or for too many."""
    if 0 < number <= LARGEST_COUNT:
        return False
    if number:
        message = f"{key!r} has room for {number:,} chunks, more than the {LARGEST_COUNT:,} that one spec may declare"
        yield Diagnostic("MT109", message, filling.path, help="make the chunks larger")
    else:
        message = f"{key!r} has no room for a chunk of {exact(filling.size)}, so that {filling.name!r} would have none"
        yield _open(filling, message, "make the range larger, or the chunks smaller")
    return True


def _different(filling: Filling, found: Mapping[int, str]) -> Diagnostic:
    first, second = list(found.items())[:2]
    needs = f"{first[1]!r} needs {first[0]:,} chunks, and {second[1]!r} {second[0]:,}"
    return _open(filling, f"the count of {filling.name!r} does not follow: {needs}", "write a number of chunks")


def _open(filling: Filling, message: str, help: str, *labels: Label) -> Diagnostic:
    return Diagnostic("MT314", message, filling.path, labels=labels, help=help)
