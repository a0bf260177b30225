"""The clients of a holder: let in where they may, and shown out where they are stuck, silent, or too many."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from memtopo.sharing import wire
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.messages import refusal
from memtopo.sharing.offers import Offer
from memtopo.sharing.sockets import Peer, peer, vet
from memtopo.sharing.status import Importer, Taken
from memtopo.sharing.wire import Packet

IDLE = 30.0
"""Seconds for which a client that was given nothing may say nothing."""

SPARE = 8
"""Places for clients that only ask, such as `memtopo release`, when importers have all others."""

_QUIET = 1.0


class Clients:
    """All connections, by number, and what the selector waits for on each. `patience` is in seconds."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        talk: Callable[[Connection, int], None],
        *,
        most: int,
        patience: float,
        allow_uids: Collection[int],
    ) -> None:
        self._selector, self._talk = selector, talk
        self._most, self._patience, self._allowed = most, patience, allow_uids
        self._connections: dict[int, Connection] = {}
        self.count = 0

    def all(self) -> Collection[Connection]:
        """Those who are connected, by their numbers."""
        return self._connections.values()

    def admit(self, sock: socket.socket) -> None:
        """Take a new connection, or say why not and close it."""
        try:
            who = peer(sock)
            vet(who, f"process {who.pid}", self._allowed)
            self._make_room()
        except ExchangeError as error:
            with sock, suppress(OSError):
                wire.send(sock, wire.encode(refusal(error)))
            return
        self.count += 1
        connection = self._connections[self.count] = Connection(self.count, sock, who)
        self.resume(connection)

    def vet_importer(self, connection: Connection) -> None:
        """Let a client become an importer where it is none yet. Raises `ExchangeError` where there are too many."""
        if not connection.attached and sum(each.attached for each in self.all()) >= self._most - SPARE:
            raise ExchangeError(
                "full", f"{self._most - SPARE} importers are attached, and that is all that there may be"
            )

    def watch(self, connection: Connection) -> None:
        """Wait for its next word, or for room for what it is to be told; close it where all was said.

        Of one that is paused, `resume` will.
        """
        if connection.silent and connection.ending:
            self.drop(connection)
            return
        if connection.sock not in self._selector.get_map():
            return
        events = selectors.EVENT_READ if connection.silent else selectors.EVENT_WRITE
        self._selector.modify(connection.sock, events, self._selector.get_key(connection.sock).data)

    def pause(self, connection: Connection) -> None:
        """Wait for nothing of it until `resume`."""
        self._selector.unregister(connection.sock)

    def resume(self, connection: Connection) -> None:
        """Wait for its next word again."""
        self._selector.register(connection.sock, selectors.EVENT_READ, lambda events: self._talk(connection, events))

    def drop(self, connection: Connection) -> None:
        """End a connection, and with it the lease."""
        self.forget(connection)
        connection.sock.close()

    def forget(self, connection: Connection) -> None:
        """Leave a connection to others."""
        if self._connections.pop(connection.id, None):
            with suppress(KeyError):
                self._selector.unregister(connection.sock)

    def mind(self, now: float) -> None:
        """Show out who does not read, and who was given nothing and says nothing."""
        for each in tuple(self.all()):
            silent = not each.attached and not each.waiting and now - each.heard > IDLE
            if silent or each.stuck(now) > self._patience:
                self.drop(each)

    def _make_room(self) -> None:
        if len(self._connections) < self._most:
            return
        now = time.monotonic()
        idle = [each for each in self.all() if not each.attached and not each.waiting and now - each.heard > _QUIET]
        if not idle:
            told = f"{self._most} clients are connected, and that is all that there may be"
            raise ExchangeError("busy", told, hint="try again in a moment")
        self.drop(min(idle, key=lambda each: each.heard))


NAMED = 32
"""Exports of an importer that are named."""


class Connection:
    """A client's socket and its lease. Nothing here waits.

    `since` is in seconds of the epoch; `heard` (its last word) and `stuck_since` are the monotonic clock's.
    """

    def __init__(self, id: int, sock: socket.socket, peer: Peer) -> None:
        self.id, self.sock, self.peer = id, sock, peer
        self.since = time.time()
        self.heard = time.monotonic()
        self.stuck_since: float | None = None
        self.ending = False
        """Whether it is closed as soon as it was sent everything."""
        self.waiting = False
        """Whether it asked for the release and waits for it."""
        self._taken: dict[str, int] = {}
        self._out: deque[bytes] = deque()
        self._descriptors_out = False

    def receive(self) -> Packet | None:
        """What it says; None at its end. Raises what `wire.receive` does."""
        packet = wire.receive(self.sock)
        self.heard = time.monotonic()
        return packet

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message, or keep it until there is room. Raises `OSError` where the connection broke."""
        self._out.append(wire.encode(message))
        self.flush()

    def give(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Send a message with descriptors now or not at all. Raises `OSError`."""
        wire.send(self.sock, wire.encode(message), fds)
        self._descriptors_out = bool(fds)

    def flush(self) -> None:
        """Send what was kept, as far as there is room. Raises `OSError` where the connection broke."""
        while self._out:
            try:
                wire.send(self.sock, self._out[0])
            except BlockingIOError:
                return
            self._out.popleft()

    @property
    def silent(self) -> bool:
        """Whether everything that was kept for it is sent."""
        return not self._out

    def unread(self) -> bool:
        """Whether descriptors that it was sent lie in its queue, where they pin memory (fact 29)."""
        self._descriptors_out = self._descriptors_out and wire.unread(self.sock)
        return self._descriptors_out

    def stuck(self, now: float) -> float:
        """For how many seconds it has not read what it has to."""
        if self.silent and not self.unread():
            self.stuck_since = None
            return 0.0
        self.stuck_since = self.stuck_since or now
        return now - self.stuck_since

    def took(self, export: str, first: int, count: int) -> None:
        """Note that it was given handles; the same ones twice count once."""
        self._taken[export] = self._taken.get(export, 0) | ((1 << count) - 1) << first

    @property
    def attached(self) -> bool:
        """Whether it was given anything."""
        return bool(self._taken)

    def bound(self, offers: Mapping[str, Offer]) -> bool:
        """Whether it was given something over ipc, which ends with the holder (facts 31, 32)."""
        return any(offers[name].via == "ipc" for name in self._taken)

    def importer(self, offers: Mapping[str, Offer]) -> Importer:
        """What is told of it."""
        counts = {offers[name]: mask.bit_count() for name, mask in self._taken.items()}
        return Importer(
            id=self.id,
            pid=self.peer.pid,
            uid=self.peer.uid,
            since=self.since,
            handles=sum(counts.values()),
            bytes=sum(offer.size * count for offer, count in counts.items()),
            bound=self.bound(offers),
            taken=tuple(_taken(islice(counts.items(), NAMED))),
        )


def _taken(counts: Iterable[tuple[Offer, int]]) -> Iterable[Taken]:
    return (Taken(offer.name, offer.kind, offer.via, count, offer.size * count) for offer, count in counts)
