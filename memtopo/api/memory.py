"""From a name in the spec to bytes, and to who may use them how. Addresses are no business of this module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memtopo.api.errors import Unsuitable
from memtopo.api.regions import Region, Regions, access_of
from memtopo.api.wishes import Wish
from memtopo.complaints import COMPARED, LISTED
from memtopo.driver.types import Access, Location, LocationKind, gpu
from memtopo.geometry import Geometry
from memtopo.text import nearest
from memtopo.units import exact, shorten

_GPU = re.compile(r"gpu(0|[1-9][0-9]{0,5})")
_NODE = re.compile(r"host:(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Found:
    """`size` bytes from an `offset` on in a range or buffer of this `label`, which a place may use."""

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
        start, end = wish.span(f"buffer {label!r}", size)
        if wish.device is not None and self.place(wish.device) != own:
            raise Unsuitable(f"buffer {label!r} is on {own}, and {self.place(wish.device)} has no access to it")
        return Found(label, start, end - start, own, Access.RW)

    def mappings(self, label: str, place: Location) -> Iterator[tuple[int, int, Access]]:
        """Offset, size and access of everything in a range or a buffer, as a place sees it."""
        if label in self._buffers:
            return iter([(0, self._buffers[label][0], Access.RW)])
        return ((at, size, access_of(grants, place)) for at, size, grants in self._regions.mapped(label))

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
