"""From a name in the spec to bytes, and to who may use them how. Addresses are no business of this module."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

from memtopo.api.dtypes import DType
from memtopo.api.errors import Unsuitable
from memtopo.api.ranges import Region, Regions, access_of
from memtopo.common.text import nearest
from memtopo.common.units import exact, shorten
from memtopo.diagnostics.messages import COMPARED, LISTED
from memtopo.driver.types import Access, Location, LocationKind, gpu
from memtopo.geometry import Geometry, ManagedAllocation

_GPU = re.compile(r"gpu(0|[1-9][0-9]{0,5})")
_NODE = re.compile(r"host:(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Found:
    """`size` bytes from an `offset` on in whatever has this `label`, which a place may use."""

    label: str
    offset: int
    size: int
    place: Location
    access: Access


class Memory:
    """What there is of a geometry, by the labels of the spec. Every method raises `Unsuitable`."""

    def __init__(self, geometry: Geometry) -> None:
        self._devices, self._regions = geometry.devices, Regions(geometry)
        every = [(run, index) for run in geometry.buffers.values() for index in range(run.count)]
        self._buffers = {run.label(index): (run.declared, run.place_of(index)) for run, index in every}
        self._managed = geometry.managed
        self._external = {
            label: (*part, run.place, run.name)
            for run in geometry.external.values()
            for label, part in run.parts.items()
        }

    def range(self, label: str, wish: Wish) -> Found:
        """A range's bytes, which must be mapped throughout."""
        region = self._regions.of(label)
        if region is None:
            raise unknown("range", label, self._regions.labels)
        return self._within(region, *wish.span(f"range {label!r}", region.size), wish)

    def chunk(self, label: str, wish: Wish) -> Found:
        """A chunk's bytes, where it is mapped so that the device may do most with them."""
        places = list(self._regions.of_chunk(label))
        if not places:
            raise Unsuitable(f"chunk {shorten(label)!r} is mapped nowhere, or there is none of this name")
        found: list[Found] = []
        for place in places:
            try:
                found.append(self._mapped(*place, wish))
            except Unsuitable as error:
                refusal = error
        if not found:
            raise refusal
        return max(found, key=lambda each: each.access)

    def buffer(self, label: str, wish: Wish) -> Found:
        """A buffer's bytes, which its own GPU may read and write."""
        if label not in self._buffers:
            raise unknown("buffer", label, self._buffers)
        size, own = self._buffers[label]
        return self._own(f"buffer {label!r}", label, size, own, wish)

    def managed(self, label: str, wish: Wish) -> Found:
        """Managed memory's bytes, for the host or for a GPU that it is declared to be used by."""
        if label not in self._managed:
            raise unknown("managed memory", label, self._managed)
        run = self._managed[label]
        start, end = wish.span(f"managed memory {label!r}", run.size)
        place = gpu(run.home) if wish.device is None else self.place(wish.device)
        if place.kind is LocationKind.GPU and place.id not in run.gpus:
            raise _not_for(run, place)
        return Found(label, start, end - start, place, Access.RW)

    def external(self, label: str, wish: Wish) -> Found:
        """The bytes of what another API made, or of one of its buffers, which its own GPU may read and write."""
        if label not in self._external:
            raise unknown("external memory", label, self._external)
        _, size, own, _ = self._external[label]
        return self._own(f"external memory {label!r}", label, size, own, wish)

    def mappings(self, label: str, place: Location) -> Iterator[tuple[int, int, Access]]:
        """Offset, size and access of everything in a range, or of something else as a whole, as a place sees it."""
        if (size := self._size(label)) is not None:
            return iter([(0, size, Access.RW)])
        return ((at, size, access_of(grants, place)) for at, size, grants in self._regions.mapped(label))

    def behind(self, label: str) -> tuple[str, int]:
        """Of a buffer of external memory the whole object, and where it begins in that; anything else is itself."""
        offset, _, _, whole = self._external.get(label, (0, 0, None, label))
        return whole, offset

    def place(self, device: str | int) -> Location:
        """What a device's name or ordinal means."""
        if isinstance(device, int):
            return gpu(device)
        if device in self._devices:
            return self._devices[device]
        if match := _GPU.fullmatch(device):
            return gpu(int(match[1]))
        if match := _NODE.fullmatch(device):
            return Location(LocationKind.HOST_NUMA, int(match[1]))
        if device == "host":
            return Location(LocationKind.HOST)
        raise unknown("device", device, dict.fromkeys([*self._devices, "gpu0", "host"]))

    def _own(self, what: str, label: str, size: int, own: Location, wish: Wish) -> Found:
        """Some bytes of what its own GPU alone may use."""
        start, end = wish.span(what, size)
        if wish.device is not None and self.place(wish.device) != own:
            raise Unsuitable(f"{what} is on {own}, and {self.place(wish.device)} has no access to it")
        return Found(label, start, end - start, own, Access.RW)

    def _size(self, label: str) -> int | None:
        if label in self._buffers:
            return self._buffers[label][0]
        if label in self._managed:
            return self._managed[label].size
        return self._external[label][1] if label in self._external else None

    def _mapped(self, label: str, offset: int, size: int, wish: Wish) -> Found:
        region = self._regions.of(label)
        assert region
        start, end = wish.span("the chunk", size)
        return self._within(region, offset + start, offset + end, wish)

    def _within(self, region: Region, start: int, end: int, wish: Wish) -> Found:
        if hole := region.hole(start, end):
            told = f"nothing is mapped in range {region.label!r} from {exact(hole[0])} to {exact(hole[1])}"
            raise Unsuitable(f"{told}, and a view has no holes", hint="view a part of it: offset=, size=")
        places = region.places(start, end)
        place = _likeliest(region, start, end, places) if wish.device is None else self.place(wish.device)
        access = region.access(start, end, place) if place else Access.NONE
        if place is None or not access:
            raise _out_of_reach(region, (start, end), place, places)
        return Found(region.label, start, end - start, place, access)


def unknown(what: str, name: str, known: Iterable[str]) -> Unsuitable:
    """That there is no thing of a name, and which one was probably meant."""
    some = list(known)[:COMPARED]
    meant = nearest(name, some)
    there = f"there are {', '.join(some[:LISTED])}{' …' * (len(some) > LISTED)}" if some else "there are none"
    return Unsuitable(f"there is no {what} {shorten(name)!r}", hint=f"did you mean {meant!r}?" if meant else there)


def _not_for(run: ManagedAllocation, place: Location) -> Unsuitable:
    able = ", ".join(f"gpu{device}" for device in sorted(run.gpus))
    told = f"managed memory {run.name!r} is declared for the host and {able}, and not for {place}"
    return Unsuitable(told, hint=f"write 'accessed_by: [{place}]'")


def _likeliest(region: Region, start: int, end: int, places: Sequence[Location]) -> Location | None:
    """The device that is meant where none is named: who may do most; of several, the one that has the memory."""
    usable = {place: access for place in places if (access := region.access(start, end, place))}
    if not usable:
        return None
    home = region.home(start)
    return max(usable, key=lambda place: (usable[place], place == home, place.kind is LocationKind.GPU, -place.id))


def _out_of_reach(
    region: Region, span: tuple[int, int], place: Location | None, places: Sequence[Location]
) -> Unsuitable:
    part = f"all of range {region.label!r} from {exact(span[0])} to {exact(span[1])}"
    told = f"{place} has no access to {part}" if place else f"no one device has access to {part}"
    few = (
        f"some of it may be used by {', '.join(map(str, places))}" if places else "the spec grants nobody access to it"
    )
    return Unsuitable(told, hint=few)


Shape = int | Sequence[int] | None


class Part(TypedDict, total=False):
    """Which part of some memory is viewed, and how: what is left out is the whole of it, for whom it suits best."""

    shape: Shape
    offset: int
    size: int | None
    device: str | int | None


@dataclass(frozen=True, slots=True)
class Wish:
    """Elements of a type in a shape, `offset` bytes on, `size` bytes in all, for a `device`.

    Without a shape there is one dimension; one extent may be -1. Without a size it goes as far as the shape does, or
    to the end where that does not say it.
    """

    dtype: DType
    shape: tuple[int, ...] | None
    offset: int
    size: int | None
    device: str | int | None

    def span(self, what: str, whole: int) -> tuple[int, int]:
        """Where it begins and ends within `whole` bytes. Raises `Unsuitable` where it is nothing, or goes past them."""
        said = self.shape is not None and -1 not in self.shape
        size = self.size
        if size is None:
            size = math.prod(self.shape or ()) * self.dtype.itemsize if said else whole - self.offset
        if self.offset < 0 or size <= 0 or self.offset + size > whole:
            told = (
                f"{what} has {exact(whole)}, and this view would be its bytes {self.offset:,} to {self.offset + size:,}"
            )
            hint = f"the whole of it has {whole // self.dtype.itemsize:,} elements of {self.dtype.name}"
            raise Unsuitable(told, hint=hint)
        return self.offset, self.offset + size

    def fit(self, what: str, size: int) -> tuple[int, ...]:
        """The shape of so many bytes, its -1 resolved. Raises `Unsuitable` where it does not come to them."""
        elements, rest = divmod(size, self.dtype.itemsize)
        if rest:
            raise Unsuitable(f"{what}: {size:,} bytes are no whole number of {self.dtype.name}")
        shape = (-1,) if self.shape is None else self.shape
        known = math.prod(extent for extent in shape if extent != -1)
        if shape.count(-1) == 1 and known > 0:
            shape = tuple(elements // known if extent == -1 else extent for extent in shape)
        if min(shape, default=0) < 0 or math.prod(shape) != elements:
            raise Unsuitable(f"{what}: {elements:,} elements of {self.dtype.name} are not of shape {list(shape)}")
        return shape


def extents(shape: Shape) -> tuple[int, ...] | None:
    """A shape as a tuple; a number alone is one dimension."""
    if shape is None:
        return None
    return (shape,) if isinstance(shape, int) else tuple(map(int, shape))
