"""Text of calls: sizes, addresses, locations, properties and grants.

A line is `map r0+2M 4M c1`, or with the symbol that its result gets, `c1 = create 4M gpu0/fd`. Symbols are r
(reservation), c (chunk), a (allocation) and f (file descriptor) with a number, and `null` and `junk`, addresses of
nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from memtopo.driver.types import Access, Grant, HandleType, Location, LocationKind, Properties

KiB, MiB, TiB = 1 << 10, 1 << 20, 1 << 40
_HANDLES = {"fd": HandleType.FD, "win32": HandleType.WIN32, "fabric": HandleType.FABRIC}
_KINDS = {LocationKind.HOST: "host", LocationKind.HOST_NUMA_CURRENT: "host:current"}


class Place(NamedTuple):
    """Address as a symbol and an offset in bytes."""

    symbol: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.symbol}+{size_text(self.offset)}" if self.offset else self.symbol


def size_text(size: int) -> str:
    """Return `2M`, `64K` or `1`."""
    for unit, suffix in ((TiB, "T"), (MiB, "M"), (KiB, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def size_of(text: str) -> int:
    """Bytes of a size."""
    unit = {"T": TiB, "M": MiB, "K": KiB}.get(text[-1], 1)
    return int(text[:-1] if unit > 1 else text) * unit


def place_of(text: str) -> Place:
    """Symbol and offset of an address."""
    symbol, _, offset = text.partition("+")
    return Place(symbol, size_of(offset) if offset else 0)


@lru_cache(maxsize=1024)
def location_text(location: Location) -> str:
    """Return `gpu0`, `host`, `host:0` or `host:current`."""
    kind, number, _ = location
    if kind == LocationKind.GPU:
        return f"gpu{number}"
    return f"host:{number}" if kind == LocationKind.HOST_NUMA else _KINDS.get(kind, f"{int(kind)}:{number}")


def location_of(text: str) -> Location:
    """Location of a text."""
    if text.startswith("gpu"):
        return Location(LocationKind.GPU, int(text[3:]))
    if text.startswith("host:") and text != "host:current":
        return Location(LocationKind.HOST_NUMA, int(text[5:]))
    return Location(LocationKind.HOST if text == "host" else LocationKind.HOST_NUMA_CURRENT)


@lru_cache(maxsize=1024)
def properties_text(properties: Properties) -> str:
    """Return `gpu0/fd+fabric/rdma`."""
    words = [location_text(properties.location)]
    if handles := [word for word, kind in _HANDLES.items() if kind in properties.handles]:
        words.append("+".join(handles))
    words += ["rdma"] * properties.rdma + ["compressible"] * properties.compressible
    return "/".join(words)


def properties_of(text: str) -> Properties:
    """Properties of a text."""
    location, *words = text.split("/")
    handles = HandleType.NONE
    for word in words:
        for each in word.split("+"):
            handles |= _HANDLES.get(each, HandleType.NONE)
    return Properties(location_of(location), handles, "rdma" in words, "compressible" in words)


def grants_text(grants: tuple[Grant, ...]) -> str:
    """Return `gpu0=3,host=0`, or `-` for none."""
    return ",".join(f"{location_text(place)}={int(access)}" for place, access in grants) or "-"


def grants_of(text: str) -> tuple[Grant, ...]:
    """Grants of a text."""
    pairs = [part.split("=") for part in text.split(",")] if text != "-" else []
    return tuple(Grant(location_of(place), Access(int(access))) for place, access in pairs)
