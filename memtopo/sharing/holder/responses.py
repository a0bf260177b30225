"""Answers of a holder to requests that change nothing: its status, offers, handles and checks."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import to_builtins
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError, internal_errors, on_failure
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import unknown_state
from memtopo.driver.types import WHOLE_HOST
from memtopo.language.names import AWAKE
from memtopo.sharing import messages
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.holder.commits import Contents
from memtopo.sharing.holder.lending import Lending
from memtopo.sharing.holder.state import Counters, EventFields, HolderEvents, HolderInfo, Supervision
from memtopo.sharing.messages import HandlesRequest, LendRequest, LetGoRequest, Request
from memtopo.sharing.offers import ChangeableLayout, ExportProvider, LayoutChange, Offer, unknown_export
from memtopo.sharing.sockets import SYSTEM, System
from memtopo.sharing.status import (
    MOST_STATES,
    Importer,
    LayoutEnded,
    LocationMemory,
    State,
    Statistics,
    Status,
    unreachable,
)
from memtopo.storage.saved import Saved

_LONGEST_PATH = 1000

Clients = Collection[ClientConnection]


class TooManyInFlight(ExchangeError):
    """The system accepts no more descriptors into queues (ETOOMANYREFS); the request is to be retried for some time."""

    def __init__(self) -> None:
        message = "too many descriptors of the holder's user are unread in sockets"
        hint = "read answers sooner, or raise the holder's limit of open files (RLIMIT_NOFILE)"
        super().__init__("limit", message, hint=hint)


class Responder:
    """Answers requests from an export provider.

    `batch` is the limit of handles in one answer; `deadline` is in seconds of the epoch.
    """

    def __init__(
        self,
        provider: ExportProvider,
        info: HolderInfo,
        supervision: Supervision,
        *,
        batch: int,
        deadline: float | None,
        changeable: ChangeableLayout | None = None,
        keep: int = 0,
        system: System = SYSTEM,
    ) -> None:
        self.supervision, self.events = supervision, HolderEvents(supervision.log, system.now)
        self.nodes = supervision.nodes
        self._texts_of_nodes: WeakKeyDictionary[ClientConnection, str] = WeakKeyDictionary()
        """Statuses of the nodes as a client requests them: they stay the same for it until their last part."""
        self._counted, self._counted_memory = 0, supervision.memory()
        self._provider, self._info, self._batch, self._deadline = provider, info, batch, deadline
        self._changeable = changeable
        self._since = system.epoch()
        self.offers: Mapping[str, Offer] = {}
        self._generations: dict[str, int] = {}
        self.contents, self.lending = Contents(), Lending(provider, self.events, keep)
        self._read_offers()
        self.contents.restore(info.committed)
        self.counters = Counters(epoch=system.epoch)
        self.releasing = False

    def answer(self, connection: ClientConnection, request: Request, clients: Clients) -> None:
        """Answer one request. Raises `MemtopoError` for a refusal, `TooManyInFlight`, `OSError`."""
        answer: dict[str, Any]
        match request:
            case HandlesRequest():
                return self._handles(connection, request, clients)
            case LendRequest():
                return self._lend(connection, request)
            case messages.SealRequest():
                self.lending.seal(connection, self._offer(request.export).name, request.blocks, request.key)
                answer = {"generation": self.generation}
            case LetGoRequest():
                answer = self._let_go(connection, request)
            case messages.ImportersRequest():
                importers = list(self.importers([each for each in clients if each.id > request.after]))
                page = messages.page(importers)
                answer = {"importers": page, "more": len(page) < len(importers)}
            case messages.ListRequest(request="offers"):
                offers = map(self.described, islice(self.offers.values(), request.first, None))
                answer = {"total": len(self.offers), "offers": messages.page(offers), "generation": self.generation}
            case messages.ListRequest(request="source"):
                answer = messages.text_part((self._changeable or self._info).source, request.first)
            case messages.ListRequest():
                answer = messages.text_part(self._text_of_nodes(connection, request.first), request.first)
            case Request(request="metrics"):
                answer = to_builtins(self.statistics())
            case _:
                answer = messages.encode_status(self.status("", ()))
        return connection.send({"ok": answer})

    def _text_of_nodes(self, connection: ClientConnection, first: int) -> str:
        if not first:
            statuses = self.nodes.statuses() if self.nodes else ()
            self._texts_of_nodes[connection] = json.dumps(to_builtins(statuses)) if statuses else ""
        return self._texts_of_nodes.get(connection, "")

    def importers(self, clients: Clients) -> Iterator[Importer]:
        """Yield the records of the clients that received handles, by ascending id."""
        return (each.importer for each in clients if each.attached)

    def status(self, socket: str, clients: Clients) -> Status:
        """Status of the layout at the path of a socket, as a client receives it."""
        spec, layout, end = (self._changeable or self._info).spec, self._changeable, self.supervision.end()
        state: State = "releasing" if self.releasing or end else "serving"
        return Status(
            name=self._info.name,
            socket=socket,
            pid=os.getpid(),
            uid=os.geteuid(),
            since=self._since,
            state="lost" if end and end.lost else state,
            deadline=self._deadline,
            spec=None if spec is None else shorten(spec, _LONGEST_PATH),
            machine=self._info.machine,
            offers=tuple(map(self.described, self.offers.values())),
            importers=tuple(self.importers(clients)),
            generation=self.generation,
            layout_state=self.layout_state,
            layout_states=tuple(layout.states)[:MOST_STATES] if layout and self.layout_state else (),
            contexts=tuple(contexts()) if (contexts := self.supervision.contexts) else None,
            processes=self.supervision.processes(),
            heaps=tuple(self.supervision.heaps()),
            nodes=unreachable(self.nodes.names) if self.nodes else (),
            end=end,
        )

    def require_complete(self) -> None:
        """Raise `ExchangeError` once a process of the layout has ended or left."""
        if end := self.supervision.end():
            raise LayoutEnded(self._info.name, end)

    def described(self, offer: Offer) -> Offer:
        """Return an offer with the present state of its content, and of what is lent of it."""
        return self.lending.described(self.contents.described(offer))

    def statistics(self) -> Statistics:
        """Statistics of the layout; its memory is counted once in each generation, but for what is lent."""
        if self._counted != self.generation:
            self._counted, self._counted_memory = self.generation, self.supervision.memory()
        memory = {each.location: each for each in self._counted_memory}
        for offer in self.offers.values():
            for location, count in self.lending.allocated(offer).items() if offer.lends else ():
                own = memory.get(location, LocationMemory(location, None, 0, 0))
                size, number = own.bytes + count * offer.size, own.allocations + count
                memory[location] = replace(own, bytes=size, allocations=number)
        return self.counters.statistics([*memory.values()])

    def memory(self) -> Mapping[str, int]:
        """Bytes of the layout by location, with those that programs have allocated in heaps, and their backups."""
        found = Counter({each.location: each.bytes for each in self.statistics().memory})
        for heap in self.supervision.heaps():
            if heap.location:
                found[heap.location] += heap.mapped
            found[str(WHOLE_HOST)] += heap.backed
        return found

    @property
    def name(self) -> str:
        """Name of the layout."""
        return self._info.name

    @property
    def holding(self) -> str:
        """Status line for systemd."""
        return f"holding {self.name}, {len(self.offers)} exports"

    @property
    def generation(self) -> int:
        """Number of the layout, which a change increments."""
        return self._changeable.generation if self._changeable else 1

    @property
    def layout_state(self) -> str | None:
        """Name of the state that the layout is in; None if it has no states."""
        return self._changeable.state if self._changeable and len(self._changeable.states) > 1 else None

    def released(self, lost: Sequence[Importer], kept: Sequence[Importer]) -> dict[str, Any]:
        """Answer to a release: importers that lost memory in use, and that keep some."""
        importers = {"lost": messages.encode_importers(lost), "kept": messages.encode_importers(kept)}
        return {"name": self.name, **importers, "reports": self.supervision.reports_end}

    def record_serving(self, socket: str) -> None:
        """Record that the layout is served at the path of a socket."""
        self.events.add("serving", {"layout": self.name, "socket": socket, "exports": len(self.offers)})

    def check(self) -> dict[str, Any]:
        """Check the layout, and return the answer for all clients that wait for one."""
        try:
            with internal_errors():
                checks = self._provider.check()
        except MemtopoError as error:
            self.events.add("check failed", {"reason": error.message}, "warning")
            return messages.encode_error(error)
        self.counters.add_check(checks)
        checked = sum(tally.looked_at for tally in checks.tallies)
        counts = {"checked": checked, "different": checks.different}
        self.events.add("checked", counts, "warning" if checks.different else "info")
        return {"ok": messages.encode_checks(checks)}

    def saved(self, folder: str) -> Saved:
        """Save the bytes of the layout to a folder. Raises `MemtopoError`."""
        if self.nodes:
            raise ExchangeError("unknown", "a layout of several nodes cannot be saved")
        with internal_errors():
            found = self.require_changeable().save(folder, self.contents.committed)
        sizes = {"written": found.written, "unchanged": found.unchanged}
        self.events.add("saved", {"folder": folder, "pieces": found.pieces, **sizes})
        return found

    def planned_switch(self, state: str) -> LayoutChange:
        """Plan a switch to a state. Raises `MemtopoError` if there is no such state."""
        layout = self._changeable
        if layout is None or state not in layout.states:
            message, hint = unknown_state(self._info.name, state, layout.states if layout else (AWAKE,))
            raise ExchangeError("unknown", message, hint=hint)
        return layout.switch(state)

    def require_changeable(self) -> ChangeableLayout:
        """Return the layout. Raises `ExchangeError` if it cannot be changed."""
        if self._changeable is None:
            raise ExchangeError("unknown", f"layout {self._info.name!r} cannot be changed")
        return self._changeable

    def after_change(self, touched: Collection[str], lost: Collection[str] = ()) -> frozenset[str]:
        """Read the offers again after a change, and return the exports that are new, or have another offer.

        It has made the objects of the `touched` exports anew, and not kept the bytes of `lost` ones.
        """
        before = self.offers
        self.lending.forget((*touched, *lost))
        self._read_offers(lost)
        new = self.offers.keys() - before.keys()
        self._generations.update(dict.fromkeys((*touched, *lost, *new), self.generation))
        return frozenset(name for name, offer in self.offers.items() if before.get(name) != offer)

    def generation_of(self, export: str) -> int:
        """Generation in which the objects of an export were made."""
        return self._generations.get(export, 1)

    def _read_offers(self, lost: Iterable[str] = ()) -> None:
        self.offers = {offer.name: offer for offer in self._provider.offers()}
        self.contents.follow((name for name, offer in self.offers.items() if offer.commit), lost)

    def _let_go(self, connection: ClientConnection, request: LetGoRequest) -> dict[str, Any]:
        _require_read(connection)
        if request.blocks is not None:
            if len(request.exports) != 1:
                raise ExchangeError("lease", "lent objects must be returned for one export at a time")
            (export,) = request.exports
            connection.give_back(export, self.lending.give_back(connection, export, request.blocks))
            return {"generation": self.generation, "exports": [export]}
        found = connection.let_go(request.exports)
        self.lending.let_go(connection, request.exports)
        if found:
            exports: EventFields = {"exports": len(found), "export": found[0]}
            self.events.add_of_client("importer let go", {**connection.identity, **exports})
        return {"generation": self.generation, "exports": found}

    def _lend(self, connection: ClientConnection, request: LendRequest) -> None:
        offer = self._offer(request.export)
        self._require_served(connection)
        leases, total = self.lending.lend(connection, offer, request, self._batch)
        with on_failure(self.lending.end, offer.name, leases):
            blocks = [{"number": each.number, "epoch": each.epoch} for each in leases]
            self._send_handles(connection, offer, [each.number for each in leases], {"blocks": blocks, "total": total})

    def _handles(self, connection: ClientConnection, request: HandlesRequest, clients: Clients) -> None:
        offer = self._offer(request.export)
        first, count = request.first, request.count
        if offer.lends:
            raise ExchangeError("lease", f"export {offer.name!r} lends its handles", hint="request 'lend'")
        if first + count > offer.count:
            raise ExchangeError("range", f"export {offer.name!r} has {offer.count:,} handles, counted from 0")
        self._require_served(connection)
        self.contents.require_readable(offer.name, connection)
        if offer.single:
            _require_single(connection, offer, first, min(count, self._batch), clients)
        about = {"offer": messages.page([self.contents.described(offer)])[0], "first": first}
        self._send_handles(connection, offer, range(first, first + min(count, self._batch)), about)

    def _require_served(self, connection: ClientConnection) -> None:
        """Raise `ExchangeError` during a release, and for a client that has not read its handles."""
        self.require_complete()
        if self.releasing:
            raise ExchangeError("releasing", f"layout {self._info.name!r} is being released")
        _require_read(connection)

    def _send_handles(
        self, connection: ClientConnection, offer: Offer, numbers: Sequence[int], about: Mapping[str, Any]
    ) -> None:
        try:
            with self.lending.handles(offer, numbers) as handles:
                encoded, fds = messages.encode_handles(handles)
                answer = {**about, "handles": encoded, "generation": self.generation_of(offer.name)}
                connection.send_descriptors({"ok": answer}, fds)
        except BlockingIOError as error:
            raise ExchangeError("unread", "too many earlier answers are unread") from error
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                raise TooManyInFlight from error
            raise
        count, is_first = len(numbers), not connection.taken((offer.name,))
        if not count:  # of an export that lends, whose client is an importer from now on
            self.record_early(connection, offer.name)
            return
        self.counters.clients += not connection.served
        connection.record(offer, numbers)
        self.counters.handles += count
        if is_first:
            self._record_import(connection, offer.name, count, offer.size * count)

    def record_early(self, connection: ClientConnection, export: str) -> None:
        """Record that a client requested handles of an export, whose memory is gone or being changed."""
        if not connection.attached:
            self._record_import(connection, export, 0, 0)
        connection.attached = True
        connection.let_go_of[export] = None

    def _record_import(self, connection: ClientConnection, export: str, handles: int, size: int) -> None:
        """Record the first handles of an export that a client received, of `size` bytes in all."""
        fields: EventFields = {"export": export, "handles": handles, "bytes": size}
        self.events.add_of_client("importer attached", {**connection.identity, **fields})

    def _offer(self, name: str) -> Offer:
        if name in self.offers:
            return self.offers[name]
        message, hint = unknown_export(name, self.offers)
        raise ExchangeError("unknown", message, hint=hint)


def _require_read(connection: ClientConnection) -> None:
    """Raise `ExchangeError` while handles lie in the client's queue, where their descriptors pin memory."""
    if connection.unread():
        raise ExchangeError("unread", "the handles before these were not read", hint="read each answer first")


def _require_single(connection: ClientConnection, offer: Offer, first: int, count: int, clients: Clients) -> None:
    """Raise `ExchangeError` if the process of a client has some of the objects by another connection (fact 82)."""
    for each in clients:
        if each is connection or not each.peer.pid or each.peer.pid != connection.peer.pid or each.gone():
            continue
        if name := each.common(offer, first, count):
            message = f"this process has imported allocations of export {name!r} already, over another connection"
            hint = "use that import: the driver does not count them, and the first free would unmap both (fact 82)"
            raise ExchangeError("imported", message, hint=hint)
