"""Memory of a geometry by the labels of the spec: the bytes that a view covers, and the access of a device to them.

This module uses offsets only; addresses are those of the layout.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import SupportsIndex, TypedDict, cast

from msgspec import Struct

from memtopo.api.dlpack import DType
from memtopo.api.dlpack import dtype as known_dtype
from memtopo.api.errors import Unsuitable
from memtopo.api.ranges import MappedRange, MappedRanges, access_at
from memtopo.common.arguments import READERS
from memtopo.common.text import nearest
from memtopo.common.units import exact, shorten
from memtopo.diagnostics.messages import COMPARED, LISTED
from memtopo.driver.types import WHOLE_HOST, Access, Location, LocationKind, gpu
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group
from memtopo.kinds.elastic import ElasticContent
from memtopo.kinds.external import ExternalObject
from memtopo.kinds.ipc import BufferGroup
from memtopo.kinds.managed import ManagedAllocation
from memtopo.kinds.pinned import PinnedGroup
from memtopo.kinds.pools.allocations import AllocationGroup

_GPU = re.compile(r"gpu(0|[1-9][0-9]{0,5})")
_ELASTIC = "it is mapped while the program runs: view it through its range, layout.range(…).view(offset, size)"
_NODE = re.compile(r"host:(0|[1-9][0-9]{0,5})")


class MemoryPart(Struct, frozen=True):
    """`size` bytes at `offset` of the object with this `label`, and the access of a `location` to them."""

    label: str
    offset: int
    size: int
    location: Location
    access: Access


class _Object(Struct, frozen=True):
    """Object of a group that is in no range: its number, and its bytes at `offset` of the object `whole`."""

    group: Group
    index: int
    size: int
    whole: str
    offset: int = 0

    @property
    def noun(self) -> str:
        """Noun of the object in messages."""
        return "external memory" if isinstance(self.group, ExternalObject) else self.group.noun

    @property
    def access(self) -> Access:
        """Access of each location that has some."""
        return self.group.access if isinstance(self.group, PinnedGroup) else Access.RW

    @property
    def locations(self) -> list[Location]:
        """Locations with access, the default one first."""
        match self.group:
            case AllocationGroup():
                return [grant.location for grant in self.group.own_access(self.index, None)]
            case ManagedAllocation():
                return [gpu(self.group.home), *map(gpu, sorted(self.group.contexts))]
            case PinnedGroup():
                return [self.group.location_of(0), *map(gpu, sorted(self.group.contexts))]
        return [self.group.location_of(self.index)]

    def refusal(self, label: str, location: Location) -> Unsuitable | None:
        """Return the error for a location without access; None for one that has access."""
        able = self.locations
        if location in able:
            return None
        match self.group:
            case AllocationGroup():
                where = ", ".join(map(str, able))
                message = f"allocation {label!r} is accessible to {where}, and not to {location}"
                if location.kind is not LocationKind.GPU:
                    return Unsuitable(message, hint="the host has no access to the memory of a GPU: copy it")
                origin = self.group.origin
                hint = f"write 'accessed_by: [{location}]' for its {'import' if origin else 'pool'}"
                if origin is not None and not origin.siblings:
                    hint += f"; of what is attached, attach(…, device='{location}')"
                return Unsuitable(message, hint=hint)
            case ManagedAllocation() | PinnedGroup():
                if location.kind is not LocationKind.GPU:
                    return None
                where = ", ".join(f"gpu{device}" for device in sorted(self.group.contexts))
                message = (
                    f"{self.noun} {self.group.name!r} is declared for the host and {where}, and not for {location}"
                )
                return Unsuitable(message, hint=f"write 'accessed_by: [{location}]'")
        return Unsuitable(f"{self.noun} {label!r} is on {able[0]}, and {location} has no access to it")


def _objects(geometry: Geometry) -> Iterator[tuple[str, _Object]]:
    """Yield the objects of a geometry that are in no range, with their labels."""
    for kind in (BufferGroup, AllocationGroup, ManagedAllocation, PinnedGroup):
        for group in geometry.of(kind).values():
            for index, label in enumerate(map(group.label, range(group.count))):
                yield label, _Object(group, index, group.declared_size, label)
    for memory in geometry.of(ExternalObject).values():
        for part in memory.mapped:
            yield part.label, _Object(memory, 0, part.size, memory.name, part.offset)


class LayoutMemory:
    """Lookup of a geometry's memory by the labels of the spec. Every method raises `Unsuitable`."""

    def __init__(self, geometry: Geometry) -> None:
        self._devices, self._ranges = geometry.devices, MappedRanges(geometry)
        self._objects = dict(_objects(geometry))

    @property
    def ranges(self) -> Sequence[str]:
        """Labels of all ranges of the spec; a layout may have further ones of its own."""
        return self._ranges.labels

    def part(self, noun: str, label: str, request: ViewRequest) -> MemoryPart:
        """Return bytes of the object with a noun and a label."""
        match noun:
            case "range":
                found = self._ranges.find(label)
                if found is None and (some := self._allocations(label)):
                    raise Unsuitable(
                        f"there is no range {label!r}", hint=f"it is an allocation: allocation({some[0]!r})"
                    )
                if found is None:
                    raise unknown("range", label, self._ranges.labels)
                return self._within(found, *request.span(f"range {label!r}", found.size), request)
            case "chunk":
                return self._chunk(label, request)
        return self._object(noun, label, request)

    def elastic(self, content: ElasticContent, request: ViewRequest) -> MemoryPart:
        """Return bytes of an elastic range, which must be mapped throughout."""
        start, end = request.span(f"range {content.label!r}", content.size)
        return self._within(self._ranges.elastic(content, start, end), start, end, request)

    def _chunk(self, label: str, request: ViewRequest) -> MemoryPart:
        """Return bytes of a chunk, at the address where the device has the most access to them."""
        mappings = list(self._ranges.of_chunk(label))
        if not mappings:
            if group := self._ranges.chunk(label)[0]:
                wrong, hint = ("elastic", _ELASTIC) if group.growing else ("not mapped", None)
                raise Unsuitable(f"chunk {shorten(label)!r} is {wrong}", hint=hint)
            raise self._no_chunk(label)
        found: list[MemoryPart] = []
        for range_label, offset, size in mappings:
            mapped = self._ranges.find(range_label)
            assert mapped
            try:
                start, end = request.span("the chunk", size)
                found.append(self._within(mapped, offset + start, offset + end, request))
            except Unsuitable as error:
                refusal = error
        if not found:
            raise refusal
        return max(found, key=lambda each: each.access)

    def _object(self, noun: str, label: str, request: ViewRequest) -> MemoryPart:
        """Return bytes of an object that is in no range, for its default location or another one with access."""
        found = self._objects.get(label)
        if found is None or found.noun != noun:
            some = self._allocations(label) if noun == "allocation" else []
            if some:
                raise Unsuitable(f"there is no allocation {label!r}", hint=f"there are {some[0]} … {some[-1]}")
            raise unknown(noun, label, [label for label, each in self._objects.items() if each.noun == noun])
        start, end = request.span(f"{noun} {label!r}", found.size)
        location = found.locations[0] if request.device is None else self.location(request.device)
        if isinstance(found.group, AllocationGroup) and location.kind is LocationKind.HOST_NUMA:
            location = WHOLE_HOST
        if refusal := found.refusal(label, location):
            raise refusal
        return MemoryPart(label, start, end - start, location, found.access)

    def covers(self, part: MemoryPart, content: ElasticContent | None) -> bool:
        """Return whether the part of a view is mapped throughout for its location, with the access of the view.

        `content` is what an elastic range has at present.
        """
        start, end = part.offset, part.offset + part.size
        found = self._ranges.elastic(content, start, end) if content else self._ranges.find(part.label)
        if found is None:
            return part.label in self._objects
        return not found.gap(start, end) and found.access(start, end, part.location) >= part.access

    def mappings(self, label: str, location: Location) -> Iterator[tuple[int, int, Access]]:
        """Offset, size and access of all mappings in a range for a location, or of another object as a whole."""
        if found := self._objects.get(label):
            return iter([(0, found.size, found.access)])
        return ((at, size, access_at(grants, location)) for at, size, grants in self._ranges.mapped(label))

    def is_of_process(self, label: str) -> bool:
        """Return whether the CPU can use the address on a simulator, too: it is that of a mapped file."""
        group = self._objects[label].group if label in self._objects else None
        return isinstance(group, PinnedGroup) and group.registered

    def containing(self, label: str) -> tuple[str, int]:
        """Return the external object that contains a buffer, and its offset; any other object is its own container."""
        found = self._objects.get(label)
        return (found.whole, found.offset) if found else (label, 0)

    def location(self, device: str | int) -> Location:
        """Return the location for a device's name or ordinal."""
        if isinstance(device, int):
            return gpu(device)
        if device in self._devices:
            return self._devices[device]
        if match := _GPU.fullmatch(device):
            return gpu(int(match[1]))
        if match := _NODE.fullmatch(device):
            return Location(LocationKind.HOST_NUMA, int(match[1]))
        if device == "host":
            return WHOLE_HOST
        if match := re.fullmatch("(?:cuda|gpu):?([0-9]{1,4})?|(cpu)", device):
            meant = "host" if match[2] else f"gpu{match[1] or 0}"
            raise Unsuitable(f"there is no device {device!r}", hint=f"did you mean {meant!r}?")
        raise unknown("device", device, dict.fromkeys([*self._devices, "gpu0", "host"]))

    def _allocations(self, name: str) -> list[str]:
        """Labels of the allocations that an entry declares, or that have a label, in order."""
        of = {label: each.group for label, each in self._objects.items() if isinstance(each.group, AllocationGroup)}
        return [label for label, group in of.items() if name in (label, group.name)]

    def _no_chunk(self, label: str) -> Unsuitable:
        """Return the error for a name that is no chunk's, and perhaps that of the entry of several chunks."""
        group = self._ranges.numbered_entry(label)
        if group is None:
            return unknown("chunk or part", label, self._ranges.chunks)
        last = (group.limit or group.count) - 1
        return Unsuitable(
            f"there is no chunk {shorten(label)!r}", hint=f"there are {group.label(0)} … {group.label(last)}"
        )

    def _within(self, mapped: MappedRange, start: int, end: int, request: ViewRequest) -> MemoryPart:
        if gap := mapped.gap(start, end):
            message = f"nothing is mapped in range {mapped.label!r} from {exact(gap[0])} to {exact(gap[1])}"
            raise Unsuitable(f"{message}, and a view has no gaps", hint="view a part of it: offset=, size=")
        if without := mapped.without_memory(start, end):
            message = f"range {mapped.label!r} maps {without!r}, which kernels access only with multimem instructions"
            raise Unsuitable(message, hint=f"take its address: layout.ranges[{mapped.label!r}].address")
        able = mapped.locations(start, end)
        location = None if request.device is None else self.location(request.device)
        accesses = {each: mapped.access(start, end, each) for each in ([location] if location else able)}
        if location is None and any(accesses.values()):
            # The one with the most access; of several, the one that has the memory.
            home = mapped.home(start)
            location = max(accesses, key=lambda at: (accesses[at], at == home, at.kind is LocationKind.GPU, -at.id))
        access = accesses[location] if location else Access.NONE
        if location is None or not access:
            accesses = {each: mapped.access(start, end, each) for each in able}
            raise _no_access(mapped.label, (start, end), location, accesses)
        return MemoryPart(mapped.label, start, end - start, location, access)


def described(what: str, state: Callable[[], str]) -> str:
    """Text for `repr`, which never raises: of what exists, with its state, or of what does not, with the reason."""
    try:
        return f"<{what}: {state()}>"
    except Unsuitable as error:
        return f"<{error.message}>"


def whole_number(name: str, value: SupportsIndex) -> int:
    """Return an argument, also one of NumPy, as an int. Raises `Unsuitable` if it is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        message = f"{name} is a whole number, not {shorten(str(value))!r}"
        hints = {"keep": "a number of chunks: keep=4", "shape": "numbers of elements: shape=(-1, 64)"}
        raise Unsuitable(message, hint=hints.get(name, "sizes and offsets are numbers of bytes: 2 << 20")) from None


def unknown(what: str, name: str, known: Iterable[str]) -> Unsuitable:
    """Return the error for an unknown name, with the nearest of the `known` names or some of them."""
    some = list(known)[:COMPARED]
    meant = f"{name}.0" if f"{name}.0" in some else nearest(str(name), some)
    there = f"there are {', '.join(some[:LISTED])}{' …' * (len(some) > LISTED)}" if some else "there are none"
    return Unsuitable(f"there is no {what} {shorten(str(name))!r}", hint=f"did you mean {meant!r}?" if meant else there)


def _no_access(
    label: str, span: tuple[int, int], location: Location | None, accesses: Mapping[Location, Access]
) -> Unsuitable:
    part = f"all of range {label!r} from {exact(span[0])} to {exact(span[1])}"
    message = f"{location} has no access to {part}" if location else f"no single device has access to {part}"
    whole = [each for each, access in accesses.items() if access]
    some = f"{'it is' if whole else 'parts of it are'} accessible to {', '.join(map(str, whole or accesses))}"
    return Unsuitable(message, hint=some if accesses else "the spec grants no access to it")


Shape = int | Sequence[int] | None


class ViewPart(TypedDict, total=False):
    """Part of some memory that is viewed, and how; by default all of it, for the device with the most access."""

    shape: Shape
    offset: int
    size: int | None
    device: str | int | None


class ViewRequest(Struct, frozen=True):
    """Elements of a type in a shape, at `offset` and of `size` in bytes, for a `device`.

    Without a shape there is one dimension; one extent may be -1. Without a size, the shape determines it or, if the
    shape has no definite size, the end of the memory.
    """

    dtype: DType
    shape: tuple[int, ...] | None
    offset: int
    size: int | None
    device: str | int | None

    @classmethod
    def of(
        cls,
        dtype: object,
        shape: Shape = None,
        offset: int = 0,
        size: int | None = None,
        device: str | int | None = None,
    ) -> ViewRequest:
        """Request with the arguments of a program. Raises `Unsuitable` for one that is none of a view."""
        size = None if size is None else whole_number("size", size)
        device = None if device is None else READERS["device"]("device", device)
        return cls(known_dtype(dtype), extents(shape), whole_number("offset", offset), size, device)

    def span(self, what: str, whole: int) -> tuple[int, int]:
        """Return start and end within `whole` bytes. Raises `Unsuitable` if the view is empty or exceeds them."""
        size = self.size
        if size is None:
            size = whole - self.offset
            if determines_size(self.shape):
                size = math.prod(self.shape or ()) * self.dtype.itemsize
        if self.offset < 0 or size <= 0 or self.offset + size > whole:
            requested = f"bytes {self.offset:,} to {self.offset + size:,}"
            hint = f"all of it is {whole // self.dtype.itemsize:,} elements of {self.dtype.name}"
            raise Unsuitable(f"{what} has {exact(whole)}, and this view would be its {requested}", hint=hint)
        return self.offset, self.offset + size

    def fit(self, what: str, size: int) -> tuple[int, ...]:
        """Return the shape for a size in bytes, with -1 resolved. Raises `Unsuitable` if it does not fit."""
        elements, rest = divmod(size, self.dtype.itemsize)
        if rest:
            raise Unsuitable(f"{what}: {size:,} bytes are not a whole number of {self.dtype.name}")
        shape = (-1,) if self.shape is None else self.shape
        known = math.prod(extent for extent in shape if extent != -1)
        if shape.count(-1) == 1 and known > 0:
            shape = tuple(elements // known if extent == -1 else extent for extent in shape)
        if min(shape, default=0) < 0 or math.prod(shape) != elements:
            # A last extent that divides the elements stays, and all else is one dimension.
            last = shape[-1] if shape else -1
            divides = len(shape) > 1 and last > 0 and elements % last == 0
            message = f"{what}: {elements:,} elements of {self.dtype.name} do not have the shape {list(shape)}"
            raise Unsuitable(message, hint=f"write shape=(-1, {last})" if divides else f"write shape=({elements},)")
        return shape


def determines_size(shape: Shape) -> bool:
    """Return true if a shape determines the size of a view."""
    return shape is not None and -1 not in (extents(shape) or ())


def extents(shape: Shape) -> tuple[int, ...] | None:
    """Return a shape as a tuple; a number is one dimension. Raises `Unsuitable` for what is no whole number."""
    if shape is None:
        return None
    with suppress(TypeError):
        return (operator.index(cast(SupportsIndex, shape)),)  # an array without dimensions, too
    several = shape if isinstance(shape, Iterable) else (shape,)
    return tuple(whole_number("shape", extent) for extent in several)
