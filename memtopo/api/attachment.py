"""`memtopo.attach`: memory that another process holds, in this one for as long as a `with` lasts."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Unpack

from memtopo.api.errors import Unsuitable
from memtopo.api.live import Live, Standing
from memtopo.api.memory import Part, unknown
from memtopo.api.session import Session, uuids
from memtopo.api.specs import Judged, MachineLike, judge, targeted
from memtopo.api.views import View
from memtopo.common.units import exact
from memtopo.driver.kernels import KernelDriver
from memtopo.language import Document
from memtopo.machine.target import Target
from memtopo.sharing import Client, Notice, Offer, Place, connect, place
from memtopo.sharing.attaching import Holders

AccessWord = Literal["r", "rw"]


class Lease(Holders):
    """The connection that keeps the holder knowing of us, which can be listened to as well."""

    def __init__(self, judged: Judged, gpus: Sequence[str], where: Place, allow_uids: Collection[int]) -> None:
        super().__init__(judged.geometry, gpus, {HOLDER: where.path}, allow_uids)

    @property
    def client(self) -> Client | None:
        """The connection, while there is one."""
        return self._clients.get(HOLDER)


class Attached(Live):
    """What a holder exports, here. Each export of chunks is a range of its name, its chunks mapped in their order.

    Of a counted export of buffers or events each has a name of its own: `b.0`, `b.1`.
    """

    def __init__(self, session: Session, lease: Lease, offers: Mapping[str, Offer], socket: str) -> None:
        super().__init__(session)
        self._lease = lease
        self.exports: Mapping[str, Offer] = MappingProxyType(dict(offers))
        """What was imported, by name, as the holder offers it."""
        self.socket = socket
        """Where the holder is."""

    def export(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """The memory of an export, whether that is chunks or a buffer, or a part of it."""
        offer = self.exports.get(name.partition(".")[0])
        if offer is None:
            raise unknown("export", name, self.exports)
        if offer.kind == "event":
            raise Unsuitable(f"export {name!r} is an event, which has no memory", hint="event() gives it")
        get = {"buffer": self.buffer, "memory": self.external}.get(offer.kind, self.range)
        return get(name, dtype, **part)

    def notice(self, timeout: float = 0.0) -> Notice | None:
        """What the holder said unasked, if it did; waits for up to `timeout` seconds.

        `releasing` means that what was imported over ipc is gone in `grace` seconds: leave the `with` before. Raises
        `ExchangeError` where the holder is gone; what was imported over fd or fabric stays good even then.
        """
        self._stands()
        client = self._lease.client
        return client.notice(timeout) if client else None


class Attachment(Standing[Attached]):
    """A held layout that is attached to while its `with` lasts, which is the lease."""

    def __init__(
        self,
        where: Place,
        exports: Collection[str] | None,
        device: str | int | None,
        access: AccessWord,
        machine: MachineLike,
        allow_uids: Collection[int],
    ) -> None:
        super().__init__()
        self._where, self._device, self._access = where, device, access
        self._wanted = [exports] if isinstance(exports, str) else exports
        self._machine, self._allowed = machine, allow_uids

    def _build(self) -> Attached:
        with connect(self._where, allow_uids=self._allowed) as client:
            name, offers = client.status().name, self._chosen(client.offers())
        found = targeted(self._machine)
        driver = found.open()
        gpus = uuids(driver)
        wanted = spec_of(name, offers.values(), gpus, self._device, self._access)
        return self._attached(Document.from_object(wanted, f"<exports of {name}>"), found, driver, gpus, offers)

    def _attached(
        self, document: Document, found: Target, driver: KernelDriver, gpus: Sequence[str], offers: Mapping[str, Offer]
    ) -> Attached:
        judged = judge(document, found)
        lease = Lease(judged, gpus, self._where, self._allowed)
        session = Session(judged, driver, lease)
        attached = Attached(session, lease, offers, self._where.path)
        session.begin(prove=False)  # imported memory is never written
        return attached

    def _chosen(self, offers: Mapping[str, Offer]) -> Mapping[str, Offer]:
        for name in self._wanted or ():
            if name not in offers:
                raise unknown("export", name, offers)
        chosen = {name: offer for name, offer in offers.items() if self._wanted is None or name in self._wanted}
        if not chosen:
            raise Unsuitable(f"nothing is exported at {self._where.path!r}" if not offers else "no export is asked for")
        return chosen


def attach(
    layout: str | os.PathLike[str],
    exports: Collection[str] | None = None,
    device: str | int | None = None,
    access: AccessWord = "rw",
    machine: MachineLike = "local",
    *,
    allow_uids: Collection[int] = (),
) -> Attachment:
    """Import what a held layout exports, all of it or the named `exports`, and have it within a `with`.

    `layout` is a name, or the path of a socket. The GPU that a chunk is on is given `access` to it, found by UUID among
    this process's GPUs; or another `device` is. The connection is the importer's lease, and ends with the `with`.
    Nothing is ever written to imported memory but by whoever uses the views. On entering it raises `NoLayout` where
    nobody holds it, `ExchangeError`, `Unavailable`, `Unsuitable`, `InvalidSpec` where this machine cannot import what
    is offered, and `NotApplied` with its report, once everything was undone.
    """
    text = os.fspath(layout)
    where = place(socket=text) if "/" in text else place(text)
    return Attachment(where, exports, device, access, machine, allow_uids)


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
