"""The clients of a holder: let in where they may, and shown out where they are stuck, silent, or too many."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from memtopo.sharing import wire
from memtopo.sharing.faults import ExchangeError
from memtopo.sharing.holder.connection import Connection
from memtopo.sharing.holder.refusing import refusal
from memtopo.sharing.peers import peer, vet

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
