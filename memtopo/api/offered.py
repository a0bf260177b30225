"""From what a holder offers to a spec that imports it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memtopo.api.errors import Unsuitable
from memtopo.common.units import exact
from memtopo.sharing import Offer

HOLDER = "holder"
"""What the holder is called in the spec; where it is found is told beside."""


def spec_of(
    name: str, offers: Iterable[Offer], gpus: Sequence[str], device: str | int | None, access: str
) -> dict[str, Any]:
    """A spec with an import for each offer, and for each offer of chunks a range in which they are mapped in order.

    `gpus` are the UUIDs of this process's GPUs, as hex text by ordinal. Raises `Unsuitable` where an offer is of none
    of them, or a semaphore.
    """
    found: dict[str, Any] = {
        "memtopo": 1, "name": name, "ranges": {}, "map": {}, "access": {}, "imports": {}, "external": {},
    }  # fmt: skip
    for offer in offers:
        places = _places(offer, gpus)
        if offer.kind == "memory":
            found["external"][offer.name] = _external(offer, places[0])
            continue
        found["imports"][offer.name] = _import(offer, places)
        if offer.kind == "chunk":
            found["ranges"][offer.name] = {"size": exact(offer.size * offer.count)}
            found["map"][offer.name] = [offer.name]
            users = _users(places) if device is None else [_device(device, gpus)]
            found["access"][offer.name] = dict.fromkeys(users, access)
    return found


def _external(offer: Offer, place: str) -> dict[str, Any]:
    source = {"from": f"{HOLDER}/{offer.name}", "via": offer.via, "device": place, "size": exact(offer.size)}
    return {**source, "dedicated": "dedicated" in offer.properties}


def _import(offer: Offer, places: Sequence[str]) -> dict[str, Any]:
    counted = {"count": offer.count} if offer.count > 1 else {}
    source = {"from": f"{HOLDER}/{offer.name}"}
    if offer.kind == "event":
        return {**source, "device": places[0], **counted}
    return {**source, "via": offer.via, "location": list(places), "size": exact(offer.size), **counted}


def _places(offer: Offer, gpus: Sequence[str]) -> list[str]:
    """Where the things of an offer are, in this process's words, in the order of dealing."""
    if offer.kind == "semaphore":
        told = f"export {offer.name!r} is a semaphore, which only a spec waits for and signals"
        raise Unsuitable(told, hint="name the exports that are to be attached to")
    if offer.gpu is None:
        return offer.location.split(", ")
    return [_ordinal(offer, uuid, gpus) for uuid in offer.gpu.split(",")]


def _ordinal(offer: Offer, uuid: str, gpus: Sequence[str]) -> str:
    if uuid not in gpus:
        told = f"export {offer.name!r} is on a GPU that this process does not have ({uuid})"
        raise Unsuitable(told, hint="look at CUDA_VISIBLE_DEVICES; the holder knows it as " + offer.location)
    return f"gpu{gpus.index(uuid)}"


def _users(places: Sequence[str]) -> list[str]:
    """Who is given access where nobody says so: the GPUs that have the memory, or the host."""
    return list(dict.fromkeys("host" if place.startswith("host") else place for place in places))


def _device(device: str | int, gpus: Sequence[str]) -> str:
    """A device's name for the spec, from an ordinal, a name or a UUID."""
    if isinstance(device, int):
        return f"gpu{device}"
    plain = device.removeprefix("GPU-").replace("-", "").lower()
    return f"gpu{gpus.index(plain)}" if plain in gpus else device
