"""Imports of an attachment: their spec, the terms on which exports are imported, and the lease of this process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, count
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from memtopo.api.errors import Unsuitable
from memtopo.api.memory import unknown
from memtopo.api.specs import plan_spec
from memtopo.common.errors import ExchangeError, NoLayout
from memtopo.common.units import exact, shorten
from memtopo.drivers.target import Target
from memtopo.geometry.groups import Group
from memtopo.kinds.exports import EXPORTABLE
from memtopo.language import Document
from memtopo.language.names import AWAKE
from memtopo.run.imports import imported_resources
from memtopo.run.layout_plans import Absent
from memtopo.session.composition import Composition
from memtopo.session.saved import spec_digest
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import NAME, Endpoint
from memtopo.sharing.held import held_source
from memtopo.sharing.imports import HolderHandles, attend
from memtopo.sharing.offers import Offer
from memtopo.sharing.sockets import SYSTEM, System

HOLDER = "holder"
"""Name of the holder in the spec."""

_COMMON = 100
"""Characters that a name which cannot be used has in common with the one that is used instead."""


def importing_spec(
    name: str,
    offers: Mapping[str, Offer],
    gpus: Sequence[str],
    device: str | int | None,
    access: Mapping[str, str],
    reserve: Mapping[str, int],
) -> dict[str, Any]:
    """Return a spec with an import for each offer and, for each offer of chunks, a range in which they are mapped.

    `gpus` are the UUIDs of this process's GPUs by ordinal, as hex text; `access` is that to each offer, `reserve` the
    size of the ranges that may be larger than their chunks. Raises `Unsuitable` for an offer of another GPU, and for
    a semaphore and what only processes of its own spec import.
    """
    found: dict[str, Any] = {
        "memtopo": 1, "name": name if NAME.fullmatch(name) else HOLDER,
        "ranges": {}, "map": {}, "access": {}, "imports": {}, "external": {}, "pinned": {},
    }  # fmt: skip
    own = None if device is None else device_name(device, gpus)
    for entry, offer in zip(entry_names(offers).values(), offers.values(), strict=True):
        locations = _locations(offer, gpus)
        section, declared = _entry(offer, locations, own, reserved=offer.name in reserve)
        found[section][entry] = declared
        if offer.kind == "chunk":
            granted = dict.fromkeys(_users(locations) if own is None else [own], access[offer.name])
            for label, size in _ranges(entry, offer, offers, reserve).items():
                found["access"].setdefault(label, {}).update(granted)
                found["ranges"].setdefault(label, {"size": exact(size)})
                if offer.lends:
                    found["ranges"][label].setdefault("elastic", {"chunks": []})["chunks"].append(entry)
                else:
                    found["map"][label] = [entry]
    return found


def _entry(offer: Offer, locations: Sequence[str], device: str | None, *, reserved: bool) -> tuple[str, dict[str, Any]]:
    """Section and entry of an offer. A `device` is one that the caller has named for access."""
    source: dict[str, Any] = {"from": f"{HOLDER}/{offer.name}", "size": exact(offer.size)}
    if offer.kind == "memory":
        more = {"via": offer.via, "device": locations[0], "dedicated": "dedicated" in offer.properties}
        return "external", source | more
    if offer.kind == "shm":
        return "pinned", source | {"accessed_by": "gpu0" if device is None else device}
    words = {"location": [*locations], "pool": [*locations], "device": locations[0], "size": exact(offer.size)}
    required, optional = EXPORTABLE[offer.kind].import_keys
    declared: dict[str, Any] = {"from": source["from"], "via": offer.via, **{key: words[key] for key in required}}
    if "parts" in optional and offer.parts:
        declared["parts"] = {part.name: exact(part.size) for part in offer.parts}
    if offer.lends:
        declared["count"] = {"max": offer.count}
    elif offer.count > 1 or reserved:
        declared["count"] = offer.count
    # No access is declared for the only location that imported pools are at.
    if offer.kind == "allocation" and device is not None and _users(locations) != _users([device]):
        declared["accessed_by"] = device
    return "imports", declared


def _ranges(entry: str, offer: Offer, offers: Mapping[str, Offer], reserve: Mapping[str, int]) -> dict[str, int]:
    """Ranges in which chunks are mapped, with their sizes: those of the holder for lent ones, and what is reserved."""
    if offer.lends is None:
        return {entry: reserve.get(offer.name, offer.size * offer.count)}
    names = lent_ranges(offers)
    own = {entry: reserve[offer.name]} if offer.name in reserve else {}
    return {names[each.name]: each.size for each in offer.lends.ranges} | own


def lent_ranges(offers: Mapping[str, Offer]) -> Mapping[str, str]:
    """Return the name of the entry of each elastic range of a holder, in which lent chunks are mapped."""
    entries = entry_names(offers)
    taken = [entries[name] for name, offer in offers.items() if offer.kind == "chunk" and not offer.lends]
    return entry_names((each.name for offer in offers.values() if offer.lends for each in offer.lends.ranges), taken)


def entry_names(exports: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the name of each export's entry in the spec: its own, but `_` for each `.` of a multi-process layout's.

    It is another one if that is `taken`.
    """
    exports, used = dict.fromkeys(exports), {*taken}
    names = {export: export for export in exports if NAME.fullmatch(export) and export not in used}
    used.update(names)
    for export in exports:
        if export not in names:
            name = export.replace(".", "_")
            candidates = chain((name,), (f"{name[:_COMMON]}_{number}" for number in count(2)))
            names[export] = next(each for each in candidates if NAME.fullmatch(each) and each not in used)
            used.add(names[export])
    return {export: names[export] for export in exports}


def _locations(offer: Offer, gpus: Sequence[str]) -> list[str]:
    """Locations of the offered memory by this process's ordinals, in round-robin order."""
    if offer.kind == "semaphore":
        message = f"export {offer.name!r} is a semaphore, which only a spec can wait for and signal"
        raise Unsuitable(message, hint="name the exports to attach to")
    if offer.kind in EXPORTABLE and (outside := EXPORTABLE[offer.kind].refusals.outside):
        message = f"export {offer.name!r} is {EXPORTABLE[offer.kind].words.article}, {outside}"
        raise Unsuitable(message, hint="name the exports to attach to")
    if offer.gpu is None:
        return offer.location.split(", ")
    uuids = offer.gpu.split(",")
    for uuid in uuids:
        if uuid not in gpus:
            message = f"export {offer.name!r} is on a GPU that this process does not have ({uuid})"
            raise Unsuitable(message, hint="look at CUDA_VISIBLE_DEVICES; in the holder it is " + offer.location)
    return [f"gpu{gpus.index(uuid)}" for uuid in uuids]


def _users(locations: Sequence[str]) -> list[str]:
    """Devices with access by default: the GPUs that have the memory, or the host."""
    return list(dict.fromkeys("host" if each.startswith("host") else each for each in locations))


def prefixes(name: str) -> list[str]:
    """Return a name, and the name without its last one and two words: `w.3.signal`, `w.3`, `w`."""
    return [name, *(name.rsplit(".", words)[0] for words in (1, 2))]


def unknown_export(name: str, exports: Collection[str]) -> Unsuitable:
    """Return the error for an unknown export; the name of its entry may be meant: `server_w.0` for `server.w.0`."""
    entries = {entry: export for export, entry in entry_names(exports).items()}
    entry = next((each for each in prefixes(name) if each in entries), None)
    if entry is None:
        return unknown("export", name, exports)
    meant = entries[entry] + name.removeprefix(entry)
    return Unsuitable(f"there is no export {shorten(name)!r}", hint=f"did you mean {meant!r}?")


def device_name(device: str | int, gpus: Sequence[str]) -> str:
    """Return the name of a device in the spec, for an ordinal, a name or a UUID."""
    if isinstance(device, int):
        return f"gpu{device}"
    plain = device.removeprefix("GPU-").replace("-", "").lower()
    return f"gpu{gpus.index(plain)}" if plain in gpus else device


Role = Literal["reader", "writer"]
AccessName = Literal["r", "rw"]

_NOT_YET = ("starting", "uncommitted", "writing", "absent", "releasing", "lost", "gone")
"""Codes of errors of a holder that does not have everything yet."""

PAUSE = 0.02
"""Seconds between two looks for a layout that is not held yet."""


class ExportImporter(Struct, frozen=True):
    """Importer of a layout's exports: its GPUs by ordinal, and what it requested for them in `attach`."""

    layout: str
    target: Target
    gpus: Sequence[str]
    role: Role | None
    device: str | int | None
    access: AccessName | None
    reserve: Mapping[str, int]

    def planned(self, offers: Mapping[str, Offer]) -> Composition:
        """Return the plan that imports exports. Raises `Unsuitable` and `InvalidSpec`."""
        for name in self.reserve:
            if name not in offers:
                raise unknown("export", name, offers)
            if (kind := offers[name].kind) != "chunk":
                raise Unsuitable(
                    f"export {name!r} is of kind {kind}, and has no range", hint="reserve for chunks alone"
                )
        access = {name: self._granted(offer) for name, offer in offers.items()}
        spec = importing_spec(self.layout, offers, self.gpus, self.device, access, self.reserve)
        return plan_spec(Document.from_object(spec, f"<exports of {self.layout}>"), self.target)

    def _granted(self, offer: Offer) -> AccessName:
        """Access to an export: readers, and all processes but the writer of what it commits, only read.

        Raises `Unsuitable`.
        """
        if offer.kind == "allocation" and self.access not in (None, "rw"):
            message = f"export {offer.name!r} is an allocation, with access 'rw' and not {self.access!r} (fact 81)"
            raise Unsuitable(message, hint="omit 'access', or name the other exports")
        if self.role == "writer" or (self.role is None and not offer.commit):
            return self.access or "rw"
        if self.access == "rw":
            why = "it is committed by a writer" if offer.commit else "role='reader' was requested"
            raise Unsuitable(
                f"export {offer.name!r} is read-only for this process: {why}",
                hint="omit access='rw'" + (", or attach with role='writer'" if offer.commit else " or role='reader'"),
            )
        return "r"


class Lease(HolderHandles):
    """Connection to the `holder`, which is the importer's lease, and on which the holder sends notices."""

    def __init__(self, planned: Composition, gpus: Sequence[str], client: Client, holder: str = HOLDER) -> None:
        super().__init__(planned.geometry, gpus, system=client.system)
        self._geometry, self._client, self._holder = planned.geometry, client, holder

    @property
    def client(self) -> Client | None:
        """The connection; None if there is none."""
        return self._clients.get(self._holder)

    def follow(self, client: Client) -> None:
        """Have the connection to another holder of the same exports, in place of one that has ended."""
        self.settle()
        self._clients[self._holder].close()
        self._clients[self._holder] = self._client = client

    def absent(self, exports: Iterable[str], state: str | None) -> Absent:
        """Return what has no memory, or a part of it, in a state of the holder, which sends a notice of its return."""
        gone = [] if state in (None, AWAKE) else [name for name in exports if not self._has_memory(name)]
        return imported_resources(self._geometry, [(self._holder, name) for name in gone])

    def _has_memory(self, export: str) -> bool:
        try:
            if self._client.offers()[export].lends:
                self._client.lend(export, 0)
                return True
            for handle in self._client.handles(export):
                handle.close()
        except ExchangeError as error:
            if error.code != "absent":
                raise
            self._client.let_go([export])
            return False
        return True

    def _connect(self, holder: str, imports: Sequence[Group]) -> Client:
        """Return the connection that exists, on which this process waited, and may be a writer."""
        return self._client if holder == self._holder else super()._connect(holder, imports)


class AttachTerms(Struct, frozen=True):
    """Requirements of an attachment: exports by name, or all; the role of this process; and a digest of the spec.

    `until` is the time of the monotonic clock until which it waits for the layout and for other processes.
    """

    exports: Collection[str] | None
    role: Role | None
    until: float
    expect: str | None
    system: System = SYSTEM

    @classmethod
    def within(
        cls,
        seconds: float,
        exports: Collection[str] | None = None,
        role: Role | None = None,
        expect: str | None = None,
        system: System = SYSTEM,
    ) -> AttachTerms:
        """Return the terms of an attachment that waits for some seconds from now on."""
        return cls(exports, role, system.now() + seconds, expect, system)

    @property
    def left(self) -> float:
        """Seconds to wait."""
        return max(self.until - self.system.now(), 0.0)

    def connect(self, where: Endpoint, allow_uids: Collection[int]) -> Client:
        """Connect to the holder, as soon as it serves. Raises `NoLayout` and `ExchangeError`."""
        while self.left:
            try:
                return connect(where, allow_uids=allow_uids, suggest=False, system=self.system)
            except NoLayout:
                pass
            except ExchangeError as error:
                if error.code != "starting":
                    raise
            self.system.pause(min(self.left, PAUSE))
        return connect(where, allow_uids=allow_uids, system=self.system)

    def again(
        self, where: Endpoint, allow_uids: Collection[int], wait: float, had: Mapping[str, Offer]
    ) -> Client | None:
        """Connect to a holder again, once it has the exports that this process `had`; None if it has not in time.

        Raises `Unsuitable` if it has something else, and `ExchangeError`.
        """
        terms = replace(self, exports=tuple(had), until=self.system.now() + wait)
        with ExitStack() as stack:
            try:
                client = stack.enter_context(terms.connect(where, allow_uids))
                _require_same(client.offers(), had, where)
                _require_same(terms.join(client, where.name or where.path, where.path), had, where)
            except NoLayout:
                return None
            except ExchangeError as error:
                if error.code not in _NOT_YET:
                    raise
                return None
            stack.pop_all()
        return client

    def join(self, client: Client, name: str, path: str) -> Mapping[str, Offer]:
        """Lease or await the exports that a writer commits, and return all that are to be imported.

        Raises `Unsuitable` for an unknown export and another layout than the expected one, and `ExchangeError`.
        """
        self._require_expected(client, name)
        chosen = self._chosen(client.offers(), path)
        if lending := [offer.name for offer in chosen.values() if offer.lends]:
            attend(client, lending)
            chosen = self._chosen(client.fresh_offers(), path)
        committed = [offer for offer in chosen.values() if offer.commit]
        generation = client.generation
        if self.role == "writer":
            if not committed:
                message = f"layout {name!r} has no export to write: none is declared 'commit: required'"
                raise Unsuitable(message, hint="attach without a role, and write with access='rw'")
            client.write([offer.name for offer in committed], wait=self.left)
        elif awaited := [offer.name for offer in committed if offer.commit != "committed"]:
            client.await_commit(awaited, wait=self.left)
        if client.generation == generation:
            return chosen
        self._require_expected(client, name)
        return self._chosen(client.offers(), path)

    def _chosen(self, offers: Mapping[str, Offer], path: str) -> Mapping[str, Offer]:
        for name in self.exports or ():
            if name not in offers:
                raise unknown("export", name, offers)
        chosen = {name: offer for name, offer in offers.items() if self.exports is None or name in self.exports}
        if not offers:
            hint = "declare 'exports' in its spec, and 'memtopo change' the layout to it"
            raise Unsuitable(f"nothing is exported at {path!r}", hint=hint)
        if not chosen:
            raise Unsuitable("no export is requested")
        return chosen

    def _require_expected(self, client: Client, name: str) -> None:
        """Raise `Unsuitable` if the layout is not of the expected spec."""
        if self.expect is None:
            return
        source = held_source(client)
        if source is None:
            raise Unsuitable(f"layout {name!r} does not send its spec, and {self.expect} is expected")
        if (found := spec_digest(source[0])) != self.expect:
            message = f"layout {name!r} has the digest {found}, and {self.expect} is expected"
            raise Unsuitable(message, hint="'memtopo plan SPEC' and 'memtopo show NAME' print the digest of a spec")


def _require_same(offers: Mapping[str, Offer], had: Mapping[str, Offer], where: Endpoint) -> None:
    """Raise `Unsuitable` if a holder does not offer what a process has."""
    if differing := [name for name, offer in had.items() if offers.get(name) != offer]:
        message = f"export {differing[0]!r} of {where.path!r} differs from the export before its holder ended"
        raise Unsuitable(message, hint="attach anew")
