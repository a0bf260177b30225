"""`memtopo.attach`: a context manager that imports the exports of a held layout into this process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack, get_args

from msgspec.structs import replace

from memtopo.api.apply import LiveContext
from memtopo.api.errors import NotApplied, NotSwitched, Unsuitable
from memtopo.api.imports import (
    HOLDER,
    PAUSE,
    AccessName,
    AttachTerms,
    ExportImporter,
    Lease,
    Role,
    device_name,
    entry_names,
    lent_ranges,
    prefixes,
    unknown_export,
)
from memtopo.api.live import Live
from memtopo.api.memory import ViewPart, determines_size
from memtopo.api.objects import DmaBufs, importable
from memtopo.api.session import IMPORTS_AS_BEFORE, OwnSession, Session, changing, uuids
from memtopo.api.specs import MachineLike, resolved
from memtopo.api.views import View
from memtopo.common.arguments import checked, refused, seconds
from memtopo.common.errors import ExchangeError, UsageError
from memtopo.common.signals import deferred
from memtopo.common.units import Size, parse_size, parsed, shorten
from memtopo.drivers.target import LOCAL, Target, recorded
from memtopo.run.imports import OutsideImports
from memtopo.sharing.client import Client
from memtopo.sharing.endpoints import Endpoint, endpoint, is_folder, usual_endpoint
from memtopo.sharing.held import held_machine
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Notice, Status

_CHANGED_MEANWHILE = ("absent", "changed", "changing", "releasing")
"""Codes of errors of a holder that switches, changes or releases its layout between two requests of an attachment."""

_ATTEMPTS = 10
"""Attempts without a wait that end with the same one of these codes."""


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
        importer: ExportImporter,
        on_change: Callable[[Notice], object] | None = None,
        again: Callable[[float, Mapping[str, Offer]], Client | None] | None = None,
    ) -> None:
        super().__init__(session)
        self._lease, self._importer, self.on_change, self._again = lease, importer, on_change, again
        self._views.read_only = importer.role == "reader"
        self.exports: Mapping[str, Offer] = MappingProxyType(dict(offers))
        """The imported exports by name, as described by the holder."""
        self.socket = socket
        """Path of the holder's socket."""

    @checked()
    def export(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> View:
        """View of the memory of an export, or of one of its elements or parts: `w`, `w.3`, `w.3.signal`."""
        found = next((each for each in prefixes(name) if each in self.exports), name)
        offer = self.exports.get(found)
        if offer is None:
            raise unknown_export(name, self.exports)
        if offer.kind == "allocation":
            _require_element(offer, found, name)
        if offer.kind == "event":
            raise Unsuitable(f"export {name!r} is an event, which has no memory", hint="event() returns it")
        if offer.lends:
            where = ", ".join(lent_ranges(self.exports)) or "a range: attach(reserve=…)"
            raise Unsuitable(f"export {name!r} lends chunks", hint=f"map them in {where}, and view them there")
        if found in self._importer.reserve and part.get("size") is None and not determines_size(part.get("shape")):
            part["size"] = offer.size * offer.count - part.get("offset", 0)
        chunks = self.range if found == name else self.chunk
        others = {"buffer": self.buffer, "allocation": self.allocation, "memory": self.external, "shm": self.pinned}
        get: Callable[..., View] = others.get(offer.kind, chunks)
        if offer.kind == "allocation" and self._importer.device is not None:
            part.setdefault("device", device_name(self._importer.device, self._importer.gpus))
        return get(entry_names(self.exports)[found] + name.removeprefix(found), dtype, **part)

    @checked()
    def range(self, name: str, dtype: object = "uint8", **part: Unpack[ViewPart]) -> Any:
        """As `Live.range`; of an elastic range of the holder, whose chunks it lends, an `ElasticRange` of this process.

        Those of a multi-process layout may be named as there: `server.kv`.
        """
        return super().range(lent_ranges(self.exports).get(name, name), dtype, **part)

    @checked()
    def address(self, name: str) -> int:
        """As `Live.address`; exports of a multi-process layout may be named as in `exports`: `server.w`."""
        return super().address(entry_names(self.exports).get(name, name))

    def commit(self) -> None:
        """Commit the exports that this process leased as their writer, once the work of its GPUs has ended.

        All of them or none; readers that wait get them then. This process remains attached, and must not write them any
        more: no driver call takes its access away. Raises `Unsuitable` for a reader, and while an export is `absent`;
        `ExchangeError` with the code `stale` if the memory was replaced since it was imported.
        """
        self._require_open()
        client = self._lease.client
        if self._importer.role != "writer" or client is None:
            hint = "attach with role='writer'"
            if not any(offer.commit for offer in self.exports.values()):
                hint = "omit it: none of its exports is declared 'commit: required'"
            raise Unsuitable(f"this process does not write layout {self.name!r}", hint=hint)
        names = [name for name, offer in self.exports.items() if offer.commit]
        assert self._imports
        written = {name: self._imports.version(HOLDER, name) for name in names}
        if gone := [name for name in names if name in self.absent or written[name].client is not client]:
            message = f"export {gone[0]!r} has no memory in this process, and everything written to it is lost"
            raise Unsuitable(message, hint="poll() until it is imported again, and write it again")
        with deferred():  # an answer that is not read would end the connection, which is the lease
            self._session.synchronize()
            client.commit(names, {name: each.generation for name, each in written.items()})

    @checked()
    def poll(self, timeout: float = 0.0) -> Notice | None:
        """As `Live.poll`; an attachment that is to attach again does so once its layout is held again.

        Until then it returns None, and the imports over fd and fabric stay valid. Raises `Unsuitable` if the new holder
        exports something else.
        """
        now = self._lease.system.now
        until = now() + timeout
        try:
            return super().poll(timeout)
        except ExchangeError as error:
            own = self._lease.client  # `on_change` may raise for another holder
            if self._again is None or error.code != "gone" or (own and not own.gone()):
                raise
        client = self._again(max(until - now(), 0.0), self.exports)
        return self._attach_again(client) if client else None

    def _attach_again(self, client: Client) -> Notice:
        """Import from a new holder at the same addresses, as after a change of the one before."""
        assert self._imports
        before = Notice("changing", generation=client.generation or 1, exports=tuple(self.exports))
        after = replace(before, kind="changed")
        with ExitStack() as unused:
            unused.callback(client.close)  # so that a later poll attaches again
            if self.on_change:
                self.on_change(before)
                self._require_open()
            with self._elastic.lock, deferred():
                self._lease.follow(client)
                for notice in (before, after):
                    super()._follow(self._imports, HOLDER, notice)
            unused.pop_all()
        if self.on_change:
            self.on_change(after)
        return after

    def _follow(self, imports: OutsideImports, holder: str, notice: Notice) -> None:
        """Follow a notice, with what exports have gained as far as there is room for it."""
        changed = imports.concerned(holder, notice) if notice.kind == "changed" else frozenset()
        if resized := dict(self._resized(changed)):
            exports = MappingProxyType({**self.exports, **resized})
            planned = self._importer.planned(exports)
            with self._changing_memory(), changing(NotSwitched, IMPORTS_AS_BEFORE):
                imports.change(planned.request(self._session.run.request))
            self.exports = exports
        super()._follow(imports, holder, notice)

    def _resized(self, exports: Collection[str]) -> Iterator[tuple[str, Offer]]:
        """Yield the offers of exports with another number of chunks that fits; what is imported is not taken away."""
        offers = self._lease.client.offers() if exports and self._lease.client else {}
        for name in exports & offers.keys():
            old, new = self.exports[name], offers[name]
            resized = new.count > old.count or (new.count < old.count and name in self.absent)
            has_room = new.size * new.count <= self._importer.reserve.get(name, 0)
            if resized and has_room and replace(new, count=old.count) == old:
                yield name, new
            elif new != old and old.lends and new.lends:
                lends = replace(new.lends, quota=old.lends.quota, kept=old.lends.kept)
                if replace(new, count=old.count, lends=lends) == old:
                    yield name, new

    @property
    def generation(self) -> int:
        """Generation of the holder's layout as of the last notice: 1, and one more after each change of it."""
        client = self._lease.client
        return (client.generation if client else None) or 1

    @property
    def absent(self) -> frozenset[str]:
        """Names of the exports that have no memory in the state of the holder; their addresses are kept."""
        return frozenset(self._imports.absent.values()) if self._imports else frozenset()

    @checked()
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


def build_attachment(
    terms: Callable[[], AttachTerms], attempt: Callable[[AttachTerms], Attached], _resources: ExitStack
) -> Attached:
    """Attach on some terms, again if the layout is switched or changed meanwhile, and nothing is left of the attempt.

    Raises as `attach` when entered.
    """
    agreed, attempts = terms(), Counter[object]()
    while True:
        try:
            return attempt(agreed)
        except (NotApplied, ExchangeError) as error:
            code = getattr(error.__cause__ or error, "code", "")
            left = isinstance(error, NotApplied) and error.report.leaks
            end = type(error), code  # the lease of an export without memory is refused, and memory goes later
            attempts[end] += 1
            if left or code not in _CHANGED_MEANWHILE or (attempts[end] >= _ATTEMPTS and not agreed.left):
                raise
        agreed.system.pause(min(agreed.left, PAUSE))


def attach_once(
    where: Endpoint,
    device: str | int | None,
    access: AccessName | None,
    machine: MachineLike | None,
    allow_uids: Collection[int],
    on_change: Callable[[Notice], object] | None,
    reserve: Mapping[str, int],
    agreed: AttachTerms,
    *,
    reattach: bool,
) -> Attached:
    """Make one attempt to attach, during which the holder may switch or change its layout."""
    with ExitStack() as stack:
        client = agreed.connect(where, allow_uids)
        stack.callback(client.close)
        status = client.status()
        offers = importable(agreed.join(client, status.name, where.path), agreed.exports)
        found = _machine(client, status, machine)
        driver = found.open()
        gpus = uuids(driver)
        importer = ExportImporter(status.name, found, gpus, agreed.role, device, access, reserve)
        planned = importer.planned(offers)
        lease = Lease(planned, gpus, client)
        absent = lease.absent(offers, status.layout_state)
        session = OwnSession(planned, driver, lease, absent=absent, verify=False)
        again = partial(agreed.again, where, allow_uids) if reattach else None
        if again and any(group.produced for group in planned.geometry.every):
            raise Unsuitable("memory of other APIs is not imported again", hint="omit reattach=True")
        attached = Attached(session, lease, offers, where.path, importer, on_change, again)
        attached.begin()
        stack.pop_all()
    return attached


@checked(role=get_args(Role), access=get_args(AccessName))
def attach(
    layout: str | os.PathLike[str],
    exports: Collection[str] | None = None,
    device: str | int | None = None,
    access: AccessName | None = None,
    machine: MachineLike | None = None,
    *,
    role: Role | None = None,
    wait: str | float = 0.0,
    expect: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    allow_uids: Collection[int] = (),
    on_change: Callable[[Notice], object] | None = None,
    reserve: Mapping[str, str | int] | None = None,
    reattach: bool = False,
) -> Attachment:
    """Import all exports of a held layout, or the named `exports`, for the duration of a `with`.

    `layout` is a name, or the path of a socket; `socket` is a folder that has the socket of the name, by default
    MEMTOPO_SOCKET if it is a folder. `access` is granted to the GPU that has the memory, which is found by UUID among
    this process's GPUs, or to `device`. The connection is the importer's lease, and ends with the `with`. `machine` is
    by default the local one or, for a layout on a simulator, a simulator of the machine that its holder reports.

    An export with `commit: required` is imported by one writer, `role="writer"`, until it has called `commit`, and by
    other processes, which only read it, after that. With `role="reader"`, this process reads all exports: chunks are
    mapped without write access, and each view is read-only, also that of memory that no driver call maps so (buffers,
    allocations of pools, external and pinned memory). For up to `wait` (seconds, or text such as "60s"), entering waits
    for a layout that is not held, for another writer, and for the commit. `expect` is the digest of the layout's spec.
    `poll` calls `on_change` when the holder changes its layout, and maps what an export gains into the range of the
    size that `reserve` has for it (bytes, or "64GiB"). Exports without memory now are `absent` until a later `poll`.
    With `reattach`, `poll` imports them anew, at the same addresses, after the holder has ended and been started again.

    Raises `UsageError` for another role. Entering raises `NoLayout` if the layout is not held, `ExchangeError` (code
    `writing`, `committed` or `uncommitted` if the wait was in vain), `Unavailable`, `Unsuitable`, also for another
    digest, `InvalidSpec` if this machine cannot import an export, and `NotApplied` after everything was undone.
    """
    terms = partial(AttachTerms.within, seconds("wait", wait), _named(exports), role, expect)
    where, sizes = _endpoint(layout, socket), _sizes(reserve or {})
    attempt = partial(attach_once, where, device, access, machine, allow_uids, on_change, sizes, reattach=reattach)
    return Attachment(partial(build_attachment, terms, attempt))


@checked()
def dma_bufs(
    layout: str | os.PathLike[str],
    exports: Collection[str] | None = None,
    *,
    wait: str | float = 0.0,
    socket: str | os.PathLike[str] | None = None,
    allow_uids: Collection[int] = (),
) -> DmaBufs:
    """Open all dma-bufs that a held layout exports, or those of the named `exports`, for the duration of a `with`.

    They are for other devices, such as network cards; neither CUDA nor a GPU is needed. `layout`, `wait`, `socket` and
    `allow_uids` are as for `attach`. Entering raises `NoLayout`, `ExchangeError`, and `Unsuitable` for an export that
    does not exist or is not via dmabuf.
    """
    return DmaBufs(_endpoint(layout, socket), _named(exports), seconds("wait", wait), allow_uids)


def _named(exports: Collection[str] | None) -> Collection[str] | None:
    """Names of exports, of which a caller may give one as a text."""
    return [exports] if isinstance(exports, str) else exports


def _require_element(offer: Offer, export: str, name: str) -> None:
    """Raise `Unsuitable` unless a name is that of one allocation of an export."""
    elements = {f"{export}.{index}" for index in range(offer.count)} if offer.count > 1 else {export}
    if name in elements:
        return
    message = f"export {export!r} has no allocation {shorten(name)!r}"
    hint = f"there are {export}.0 … {export}.{offer.count - 1}" if offer.count > 1 else f"write {export!r}"
    raise Unsuitable(message, hint=hint)


def _endpoint(layout: str | os.PathLike[str], socket: str | os.PathLike[str] | None) -> Endpoint:
    """Endpoint of a layout, by its name or the path of its socket. Raises `UsageError`."""
    name, folder = os.fspath(layout), None if socket is None else os.fspath(socket)
    if folder is not None and not is_folder(folder):
        raise UsageError(f"socket={folder!r} is no folder", hint="name the path of a socket in place of the layout")
    return endpoint(socket=name) if "/" in name else usual_endpoint(name, folder)


def _sizes(reserve: Mapping[str, str | int]) -> dict[str, int]:
    """Bytes of each range. Raises `UsageError`."""
    found: dict[str, int] = {}
    for export, size in reserve.items():
        name = f"reserve[{export!r}]"
        read = parsed(parse_size, size, name) if isinstance(size, str) else size
        amount = read.amount if isinstance(read, Size) and not read.in_granules else read
        if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
            raise refused(name, size, "a size", "write a number of bytes, or text such as '64MiB'")
        found[export] = amount
    return found


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
