"""`memtopo.attach`: a context manager that imports the exports of a held layout into this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Unpack

from memtopo.api.errors import Unsuitable
from memtopo.api.import_spec import HOLDER, entry_names, importing_spec
from memtopo.api.live import Live, LiveContext
from memtopo.api.memory import Part, unknown
from memtopo.api.session import Session, uuids
from memtopo.api.specs import MachineLike, Planned, plan_spec, resolved
from memtopo.api.views import View
from memtopo.common.errors import UsageError
from memtopo.driver.kernels import KernelDriver
from memtopo.language import Document
from memtopo.machine.target import LOCAL, Target, recorded
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import Endpoint, endpoint, is_folder
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.offers import Offer
from memtopo.sharing.sources import held_machine
from memtopo.sharing.status import Notice, Status

AccessName = Literal["r", "rw"]


class Lease(HolderHandles):
    """Connection to the holder, which is the importer's lease, and on which the holder sends notices."""

    def __init__(self, planned: Planned, gpus: Sequence[str], where: Endpoint, allow_uids: Collection[int]) -> None:
        super().__init__(planned.geometry, gpus, {HOLDER: where.path}, allow_uids)

    @property
    def client(self) -> Client | None:
        """The connection; None if there is none."""
        return self._clients.get(HOLDER)


class Attached(Live):
    """Imported exports of a holder. An export of chunks is a range of the same name, with its chunks in order.

    Buffers and events of a counted export have their own names: `b.0`, `b.1`. An export of a multi-process layout is
    `server.w`; in `ranges`, `buffers` and methods other than `export`, it is `server_w`.
    """

    def __init__(
        self,
        session: Session,
        lease: Lease,
        offers: Mapping[str, Offer],
        socket: str,
        on_change: Callable[[Notice], object] | None = None,
    ) -> None:
        super().__init__(session, lease)
        self._lease, self.on_change = lease, on_change
        self.exports: Mapping[str, Offer] = MappingProxyType(dict(offers))
        """The imported exports by name, as described by the holder."""
        self.socket = socket
        """Path of the holder's socket."""

    def export(self, name: str, dtype: object = "uint8", **part: Unpack[Part]) -> View:
        """View of the memory of an export, or of a part of it."""
        found = name if name in self.exports else name.rpartition(".")[0]
        offer = self.exports.get(found)
        if offer is None:
            raise unknown("export", name, self.exports)
        if offer.kind == "event":
            raise Unsuitable(f"export {name!r} is an event, which has no memory", hint="event() returns it")
        get: Callable[..., View] = {"buffer": self.buffer, "memory": self.external}.get(offer.kind, self.range)
        return get(entry_names(self.exports)[found] + name.removeprefix(found), dtype, **part)

    @property
    def generation(self) -> int:
        """Generation of the holder's layout as of the last notice: 1, and one more after each change of it."""
        client = self._lease.client
        return (client.generation if client else None) or 1

    @property
    def absent(self) -> frozenset[str]:
        """Names of the exports whose memory the holder has taken back; their addresses are kept."""
        return frozenset(self._imports.absent.values()) if self._imports else frozenset()

    def notice(self, timeout: float = 0.0) -> Notice | None:
        """Return the next notice of the holder, if there is one, without following it as `poll` does.

        Waits for up to `timeout` seconds.
        After `releasing`, imports over ipc become invalid in `grace` seconds: leave the `with` before. Raises
        `ExchangeError` if the holder is gone; imports over fd or fabric remain valid even then.
        """
        self._require_open()
        client = self._lease.client
        return client.notice(timeout) if client else None


class Attachment(LiveContext[Attached]):
    """Attachment to a held layout, for the duration of a `with`."""

    def __init__(
        self,
        where: Endpoint,
        exports: Collection[str] | None,
        device: str | int | None,
        access: AccessName,
        machine: MachineLike | None,
        allow_uids: Collection[int],
        on_change: Callable[[Notice], object] | None,
    ) -> None:
        super().__init__()
        self._where, self._device, self._access, self._on_change = where, device, access, on_change
        self._requested = [exports] if isinstance(exports, str) else exports
        self._machine, self._allowed = machine, allow_uids

    def _build(self) -> Attached:
        with connect(self._where, allow_uids=self._allowed) as client:
            status, offers = client.status(), self._chosen(client.offers())
            found = _machine(client, status, self._machine)
        driver = found.open()
        gpus = uuids(driver)
        spec = importing_spec(status.name, offers, gpus, self._device, self._access)
        return self._attached(Document.from_object(spec, f"<exports of {status.name}>"), found, driver, gpus, offers)

    def _attached(
        self, document: Document, found: Target, driver: KernelDriver, gpus: Sequence[str], offers: Mapping[str, Offer]
    ) -> Attached:
        planned = plan_spec(document, found)
        lease = Lease(planned, gpus, self._where, self._allowed)
        session = Session(planned, driver, lease)
        attached = Attached(session, lease, offers, self._where.path, self._on_change)
        session.begin(verify=False)  # imported memory is never written
        return attached

    def _chosen(self, offers: Mapping[str, Offer]) -> Mapping[str, Offer]:
        for name in self._requested or ():
            if name not in offers:
                raise unknown("export", name, offers)
        chosen = {name: offer for name, offer in offers.items() if self._requested is None or name in self._requested}
        if not chosen:
            raise Unsuitable(f"nothing is exported at {self._where.path!r}" if not offers else "no export is requested")
        return chosen


def attach(
    layout: str | os.PathLike[str],
    exports: Collection[str] | None = None,
    device: str | int | None = None,
    access: AccessName = "rw",
    machine: MachineLike | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    allow_uids: Collection[int] = (),
    on_change: Callable[[Notice], object] | None = None,
) -> Attachment:
    """Import all exports of a held layout, or the named `exports`, for the duration of a `with`.

    `layout` is a name, or the path of a socket; `socket` is a folder that has the socket of the name, as one that
    containers share. `access` is granted to the GPU that has the memory, which is found by UUID among this process's
    GPUs, or to `device`. The connection is the importer's lease, and ends with the `with`.
    `machine` is by default the local one or, if the layout is held on a simulated machine, a simulator of the machine
    that its holder reports. memtopo itself never writes to imported memory. `poll` calls `on_change` when the holder
    changes its layout.

    Entering raises `NoLayout` if the layout is not held, `ExchangeError`, `Unavailable`, `Unsuitable`, `InvalidSpec` if
    this machine cannot import an export, and `NotApplied` with the report after everything was undone.
    """
    text = os.fspath(layout)
    folder = None if socket is None else os.fspath(socket)
    if folder is not None and not is_folder(folder):
        raise UsageError(f"socket={folder!r} is no folder", hint="name the path of a socket in place of the layout")
    where = endpoint(socket=text) if "/" in text else endpoint(text, folder)
    return Attachment(where, exports, device, access, machine, allow_uids, on_change)


def _machine(client: Client, status: Status, requested: MachineLike | None) -> Target:
    """Return the requested machine; by default this one, or a simulator of the machine that the layout is held on.

    Raises `Unsuitable` for a simulated layout on GPUs, and if its holder does not report a valid machine.
    """
    line = status.machine
    if not line.simulated or requested not in (None, LOCAL):
        return resolved(requested or LOCAL)
    hint = f"attach to it with machine={line.name!r}"
    message = f"layout {status.name!r} is held on the simulated machine {line.name!r}"
    if requested == LOCAL:
        raise Unsuitable(f"{message}, not on GPUs", hint=f"{hint}, or without a machine")
    machine = held_machine(client)
    if machine is None:
        raise Unsuitable(f"{message}, whose record its holder does not send", hint=hint)
    return recorded(line.name, machine)
