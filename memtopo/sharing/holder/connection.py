"""One client of a holder: who it is, what it was given, and what it has yet to read."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from memtopo.sharing import wire
from memtopo.sharing.offers import Offer
from memtopo.sharing.peers import Peer
from memtopo.sharing.status import Importer, Taken
from memtopo.sharing.wire import Packet

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
