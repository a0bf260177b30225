"""Clients of a holder: their connections and leases, and the limits on their number, their silence and their queues."""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from memtopo.common.errors import BadPacket, ExchangeError
from memtopo.common.processes import RunningClock
from memtopo.common.text import process_name
from memtopo.sharing import messages, wire
from memtopo.sharing.holder.state import EventFields, HolderEvents
from memtopo.sharing.messages import SourcePart, encode_error
from memtopo.sharing.offers import Offer
from memtopo.sharing.sockets import SYSTEM, PeerProcess, System, check_user, has_ended
from memtopo.sharing.status import Importer, Taken
from memtopo.sharing.wire import Packet

IDLE = 30.0
"""Seconds for which a client without handles may send nothing."""

SPARE = 8
"""Connections that importers cannot use, for clients that only query or release the layout."""

_MOST_AWAITED = 10_000
"""Exports that a client may await without having had them."""
_NAMED_EXPORTS = 32
"""Exports of an importer that its record names."""

_QUIET = 1.0
"""Seconds of silence after which a client without handles makes room for a new one."""


class _Received(NamedTuple):
    """Handles of an export that a client received: a bit for each."""

    offer: Offer
    handles: int


class ClientConnection:
    """A client's connection and its lease. No method waits.

    `since` is in seconds of the epoch, `last_received` of the clock. `closing` connections are closed once
    everything is sent; `awaits_release` ones requested the release, `awaits_commit` ones wait for a writer. An
    `attached` client has received a handle or awaits one, a `served` one has received one, and one with `writes` is
    the writer of these exports.
    """

    def __init__(
        self, id: int, sock: socket.socket, peer: PeerProcess, clock: RunningClock, since: float = 0.0
    ) -> None:
        self.id, self.sock, self.peer, self.since = id, sock, peer, since
        self._clock = clock
        self.last_received = clock.time()
        self.closing = False
        self.awaits_release = self.release_answered = False
        self.awaits_commit = False
        self.writes: set[str] = set()
        self.attached = False
        self.served = False
        self.let_go_of: dict[str, None] = {}
        """Exports whose handles the client has received and closed again, or requested too early, in order."""
        self.asked: set[str] = set()
        """Exports that the client was asked to let go of, until it is notified of them again."""
        self.kept: dict[str, int] = {}
        """Exports whose old memory the client kept in a change, and the generation of its notice."""
        self._stuck_since: float | None = None
        self._taken: dict[str, _Received] = {}
        self._source: list[str] = []
        self._outgoing: deque[bytes] = deque()
        self._notices: dict[str, Mapping[str, Any]] = {}
        """Notices for which there was no room, by kind: a client may read none."""
        self._descriptors_sent = False

    @property
    def identity(self) -> EventFields:
        """Number, process and user of the client for events; the process of another pid namespace is `?`."""
        return {"client": self.id, "pid": self.peer.pid or "?", "uid": self.peer.uid}

    @property
    def received_source(self) -> int:
        """Characters of an incomplete source that the client has sent."""
        return sum(map(len, self._source))

    def receive_source(self, part: SourcePart) -> str | None:
        """Add a part of a source, the first of which begins it anew. Return the source when it is complete.

        Raises `BadPacket` for a part that does not follow the one before.
        """
        if part.first == 0:
            self._source.clear()
        if part.first != self.received_source:
            raise BadPacket("a part of the source is missing")
        self._source.append(part.text)
        if (received := self.received_source) < part.total:
            return None
        if received > part.total:
            raise BadPacket("the source is longer than announced")
        source = "".join(self._source)
        self._source.clear()
        return source

    def receive(self) -> Packet | None:
        """Receive a packet; None at the end of the connection. Raises the errors of `wire.receive`."""
        packet = wire.receive(self.sock)
        self.last_received = self._clock.time()
        return packet

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or queue it until there is room. Raises `OSError` if the connection broke.

        A queued notice is replaced by the next one of its kind, which gets its exports.
        """
        if kind := message.get("notice"):
            earlier = self._notices.pop(kind, {}).get("exports", ())
            names = dict.fromkeys([*earlier, *message.get("exports", ())])
            self._notices[kind] = {**message, "exports": [*names]} if "exports" in message else message
        else:
            self._outgoing.append(wire.encode(message))
        self.flush()

    def send_descriptors(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Send a message with descriptors, at once or not at all. Raises `OSError`."""
        wire.send(self.sock, wire.encode(message), fds)
        self._descriptors_sent = bool(fds)

    def flush(self) -> None:
        """Send queued messages as far as there is room. Raises `OSError` if the connection broke."""
        with suppress(BlockingIOError):
            while not self.flushed:
                self.unread()  # before more packets are unread, which have no descriptors
                if self._outgoing:
                    wire.send(self.sock, self._outgoing[0])
                    self._outgoing.popleft()
                    continue
                kind, notice = next(iter(self._notices.items()))
                names = notice.get("exports", [])
                part = next(messages.parts(names))  # as many as fit into a packet
                wire.send(self.sock, wire.encode({**notice, "exports": part} if part else notice))
                if left := names[len(part) :]:
                    self._notices[kind] = {**notice, "exports": left}
                else:
                    del self._notices[kind]

    @property
    def flushed(self) -> bool:
        """True if no message is queued."""
        return not (self._outgoing or self._notices)

    def unread(self) -> bool:
        """Return whether descriptors lie in the client's queue, where they pin memory (fact 29)."""
        self._descriptors_sent = self._descriptors_sent and wire.unread(self.sock)
        return self._descriptors_sent

    def gone(self) -> bool:
        """Return at once whether the client has ended the connection, with or without requests before."""
        return has_ended(self.sock)

    def stuck(self, now: float) -> float:
        """Return the seconds for which the client has not read answers or descriptors that it was sent."""
        if not self._outgoing and not self.unread():
            self._stuck_since = None
            return 0.0
        self._stuck_since = self._stuck_since or now
        return now - self._stuck_since

    def record(self, offer: Offer, numbers: Iterable[int]) -> None:
        """Record handles of an export that the client received; each counts once."""
        earlier = self._taken[offer.name].handles if offer.name in self._taken else 0
        self._taken[offer.name] = _Received(offer, earlier | sum(1 << number for number in numbers))
        self.attached = self.served = True
        self.let_go_of.pop(offer.name, None)

    def give_back(self, export: str, numbers: Iterable[int]) -> None:
        """Forget some handles of an export, which the client has closed; it may request others."""
        taken = self._taken[export]
        handles = taken.handles & ~sum(1 << number for number in numbers)
        self._taken[export] = taken._replace(handles=handles)
        if not handles:
            self.let_go([export])

    def common(self, offer: Offer, first: int, count: int) -> str | None:
        """Return an export from which the client has some of the objects behind handles of an offer."""
        wanted = ((1 << count) - 1) << offer.first + first
        for name, (taken, handles) in self._taken.items():
            if taken.objects == offer.objects and handles << taken.first & wanted:
                return name
        return None

    def let_go(self, exports: Iterable[str]) -> list[str]:
        """Forget the handles of exports, which the client has closed; return the names of the exports that it had.

        It awaits the others, too: one may have gone before the client, which attaches again, has asked for it.
        """
        names = dict.fromkeys(exports)
        found = [name for name in names if self._taken.pop(name, None)]
        self.let_go_of.update(names if len(self.let_go_of) < _MOST_AWAITED else dict.fromkeys(found))
        return found

    def taken(self, exports: Collection[str]) -> list[Taken]:
        """Return what the client has received of some exports, and has not let go of."""
        found = ((offer, handles.bit_count()) for name, (offer, handles) in self._taken.items() if name in exports)
        return [Taken(offer.name, offer.kind, offer.via, count, offer.size * count) for offer, count in found]

    @property
    def bound(self) -> bool:
        """True if the client uses an export that ends with the holder (facts 31, 32, 82)."""
        return any(each.offer.bound for each in self._taken.values())

    @property
    def importer(self) -> Importer:
        """Record of the client."""
        return self.importer_of(self._taken)

    def importer_of(self, exports: Collection[str]) -> Importer:
        """Return the record of the client as an importer of some exports."""
        taken = self.taken(exports)
        objects: dict[Hashable, int] = {}  # an object that came by several exports counts once
        sizes: dict[Hashable, int] = {}
        for offer, handles in (each for name, each in self._taken.items() if name in exports):
            objects[offer.objects] = objects.get(offer.objects, 0) | handles << offer.first
            sizes[offer.objects] = offer.size
        return Importer(
            id=self.id,
            pid=self.peer.pid,
            uid=self.peer.uid,
            since=self.since,
            handles=sum(each.handles for each in taken),
            bytes=sum(sizes[each] * bits.bit_count() for each, bits in objects.items()),
            bound=self.bound,
            taken=tuple(taken[:_NAMED_EXPORTS]),
        )


class Clients:
    """All connections by id, and their events in the selector. `patience` is in seconds."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        handle_events: Callable[[ClientConnection, int], None],
        *,
        most: int,
        patience: float,
        allow_uids: Collection[int],
        events: HolderEvents | None = None,
        system: System = SYSTEM,
    ) -> None:
        self._events = events or HolderEvents()
        self._selector, self._handle_events = selector, handle_events
        self._most, self._patience, self._allow_uids = most, patience, allow_uids
        self._system, self._clock = system, RunningClock(system.now)
        self._connections: dict[int, ClientConnection] = {}
        self._last_id = 0

    def all(self) -> Collection[ClientConnection]:
        """Return all connections, by ascending id."""
        return self._connections.values()

    def connected(self, connection: ClientConnection) -> bool:
        """Return whether a connection has not ended."""
        return connection.id in self._connections

    @property
    def bound(self) -> list[ClientConnection]:
        """Clients that lose memory in use by the release, and did not request it."""
        return [each for each in self.all() if not each.awaits_release and each.bound]

    def admit(self, sock: socket.socket) -> None:
        """Admit a new connection, or refuse it with a reason and close it."""
        try:
            peer = self._system.peer(sock)
            check_user(peer, process_name(peer.pid), self._allow_uids, "the holder")
            self._make_room(peer)
        except ExchangeError as error:
            with sock, suppress(OSError):
                wire.send(sock, wire.encode(encode_error(error)))
            return
        self._last_id += 1
        connection = ClientConnection(self._last_id, sock, peer, self._clock, self._system.epoch())
        self._connections[self._last_id] = connection
        self.resume(connection)

    def check_importer(self, connection: ClientConnection) -> None:
        """Accept a client as an importer, or to wait for a commit, unless there are too many. Raises `ExchangeError`.

        Writers have connections of the spare ones, since others wait for them.
        """
        if connection.attached or connection.writes:
            return
        most = self._most - SPARE
        if sum(each.attached or each.awaits_commit for each in self.all()) >= most:
            raise ExchangeError("full", f"{most} importers are attached or wait for a commit, and that is the limit")

    def update_events(self, connection: ClientConnection) -> None:
        """Wait for the next request, or for room to send; close a connection that is `closing` and flushed.

        A paused connection stays paused.
        """
        if connection.flushed and connection.closing:
            self.drop(connection)
            return
        if connection.sock not in self._selector.get_map():
            return
        events = selectors.EVENT_READ if connection.flushed else selectors.EVENT_WRITE
        self._selector.modify(connection.sock, events, self._selector.get_key(connection.sock).data)

    def deliver(self, connection: ClientConnection, message: Mapping[str, Any]) -> None:
        """Send a message to a client that did not send the last event, or drop it if its connection broke."""
        try:
            connection.send(message)
        except OSError:
            self.drop(connection)
        else:
            self.update_events(connection)

    def answer(self, connection: ClientConnection, message: Mapping[str, Any]) -> None:
        """Answer the request of a paused connection, if that still exists."""
        if connection in self.all():
            self.resume(connection)
            self.deliver(connection, message)

    def waits(self, connection: ClientConnection) -> bool:
        """Return whether a paused client still waits for its answer; if it has ended the connection, drop it."""
        if connection in self.all() and not connection.gone():
            return True
        self.drop(connection)
        return False

    def pause(self, connection: ClientConnection) -> None:
        """Wait for no event of a connection until `resume`."""
        self._selector.unregister(connection.sock)

    def resume(self, connection: ClientConnection) -> None:
        """Wait for the next request of a connection."""
        self._selector.register(connection.sock, selectors.EVENT_READ, partial(self._handle_events, connection))

    def drop(self, connection: ClientConnection) -> None:
        """Close a connection, and end its lease."""
        if connection.attached and connection.id in self._connections:
            held = connection.importer
            counts = {"handles": held.handles, "bytes": held.bytes}
            self._events.add_of_client("importer detached", {**connection.identity, **counts})
        self.remove(connection)
        connection.sock.close()

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection without closing it."""
        if self._connections.pop(connection.id, None):
            with suppress(KeyError):
                self._selector.unregister(connection.sock)

    def abandon(self) -> None:
        """Close all connections, and leave their events in the selector."""
        for each in self.all():
            each.sock.close()
        self._connections.clear()

    def drop_unresponsive(self) -> None:
        """Close connections that do not read their answers, and those without handles that send nothing."""
        now = self._clock.time()
        for each in tuple(self.all()):
            if self._idle(each, now, IDLE) or each.stuck(now) > self._patience:
                self.drop(each)

    def _make_room(self, peer: PeerProcess) -> None:
        """Close ended connections, else the longest idle one, if there are too many.

        Half of the places are left to the user of this process. Raises `ExchangeError` if there is no room.
        """
        ours, hint = os.geteuid(), "try again in a moment"
        if peer.uid != ours and sum(each.peer.uid != ours for each in self.all()) >= self._most // 2:
            message = f"{self._most // 2} clients of other users are connected, and that is the limit"
            raise ExchangeError("busy", message, hint=hint)
        if len(self._connections) < self._most:
            return
        for each in [each for each in self.all() if each.gone()]:
            self.drop(each)
        if len(self._connections) < self._most:
            return
        now = self._clock.time()
        idle = [each for each in self.all() if self._idle(each, now, _QUIET)]
        if not idle:
            raise ExchangeError("busy", f"{self._most} clients are connected, and that is the limit", hint=hint)
        self.drop(min(idle, key=lambda each: each.last_received))

    def _idle(self, connection: ClientConnection, now: float, seconds: float) -> bool:
        """Return whether a client that waits for nothing has been silent for so many seconds."""
        waits = connection.awaits_release or connection.sock not in self._selector.get_map()
        return not (waits or connection.attached or connection.writes) and now - connection.last_received > seconds
