"""Publications of a holder: a file of metrics, a socket that answers HTTP requests, and reports to other nodes.

They are served by the holder's loop. None waits for a reader.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Collection
from functools import partial

from msgspec import Struct

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.common.text import process_name
from memtopo.sharing.claims import Claim
from memtopo.sharing.sockets import Listener, abandon_in_children, check_user, peer
from memtopo.sharing.status import Statistics, Status

PAUSE = 1.0
"""Seconds between two looks at the metrics of a file."""

REFRESH = 60.0
"""Seconds after which a file is written again even if nothing has changed: an older heartbeat is a dead holder's."""

MOST_CONNECTIONS = 16
PATIENCE = 5.0
"""Seconds that a connection has for its request and the answer."""

LONGEST_REQUEST = 8 << 10

_PATHS = (b"/", b"/metrics")
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsTarget(Struct, frozen=True):
    """Target of metrics: `write` replaces a file, or a `claim` of the path of a socket.

    `render` makes their text, with the time in seconds of the epoch as the holder's heartbeat.
    """

    render: Callable[[Status, Statistics, float], str]
    write: Callable[[str], None] | None = None
    claim: Claim | None = None


class MetricsFile:
    """File with the metrics; a failure to write it is kept as `failure` and tried again.

    `text` makes them with a time of the epoch, that of the last write where it is compared. `epoch` returns the time.
    """

    def __init__(self, text: Callable[[float], str], write: Callable[[str], None], epoch: Callable[[], float]) -> None:
        self._text, self._write, self._epoch = text, write, epoch
        self._written: str | None = None
        self._heartbeat = 0.0
        self._next_look = self._next_write = 0.0
        self.failure: str | None = None

    def advance(self, now: float) -> None:
        """Write the file if the metrics have changed, or after `REFRESH` seconds."""
        if now < self._next_look:
            return
        self._next_look = now + PAUSE
        if now < self._next_write and self._text(self._heartbeat) == self._written:
            return
        heartbeat = self._epoch()
        text = self._text(heartbeat)
        try:
            self._write(text)
        except MemtopoError as error:
            self.failure = error.message
            return
        self._written, self._heartbeat, self._next_write, self.failure = text, heartbeat, now + REFRESH, None

    def close(self) -> None:
        """Leave the file to its owner."""


_REPORT_PAUSE = 0.5
"""Seconds between two reports of a holder on itself."""


class StatusReports:
    """Reports of a holder on itself to the other nodes: at once, and again whenever its status differs."""

    failure: str | None = None

    def __init__(self, status: Callable[[], Status], report: Callable[[Status], None]) -> None:
        self._status, self._report = status, report
        self._next = 0.0
        self._last: Status | None = None

    def advance(self, now: float) -> None:
        """Report, if it is time."""
        if now < self._next:
            return
        self._next, found = now + _REPORT_PAUSE, self._status()
        if found != self._last:
            self._last = found
            self._report(found)

    def close(self) -> None:
        """End the reports; there is nothing to close."""


class _Exchange(Struct):
    """One connection: what was received of its request, what is left of its answer, and its deadline."""

    sock: socket.socket
    until: float
    received: bytes = b""
    answer: memoryview | None = None


class MetricsServer:
    """Answers each connection with the metrics (HTTP/1.0), and ends it. Raises nothing to the loop."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        text: Callable[[], str],
        clock: Callable[[], float],
        allow_uids: Collection[int],
    ) -> None:
        self._selector, self._text, self._clock = selector, text, clock
        self._listener = Listener(selector, listener, self._admit, clock=clock)
        self._allow_uids = allow_uids
        self._exchanges: dict[int, _Exchange] = {}
        self.failure: str | None = None
        abandon_in_children(self)

    def advance(self, now: float) -> None:
        """Close connections that take too long, and accept new ones again after the descriptors were exhausted."""
        for each in tuple(self._exchanges.values()):
            if now >= each.until:
                self._end(each)
        self._listener.advance()

    def close(self) -> None:
        """Close all connections."""
        for each in tuple(self._exchanges.values()):
            self._end(each)
        self._listener.close()

    def abandon(self) -> None:
        """Close all descriptors without a change of the selector, which a forked child shares with its parent."""
        for each in self._exchanges.values():
            each.sock.close()
        self._exchanges.clear()
        self._listener.abandon()

    def _admit(self, sock: socket.socket) -> None:
        try:
            found = peer(sock)
            check_user(found, process_name(found.pid), self._allow_uids)
        except (ExchangeError, OSError):
            sock.close()
            return
        if len(self._exchanges) >= MOST_CONNECTIONS:
            self._end(min(self._exchanges.values(), key=lambda each: each.until))
        sock.setblocking(False)  # noqa: FBT003 the signature is the library's
        exchange = self._exchanges[sock.fileno()] = _Exchange(sock, self._clock() + PATIENCE)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._handle_events, exchange))

    def _handle_events(self, exchange: _Exchange, _events: int) -> None:
        try:
            if exchange.answer is None:
                self._receive(exchange)
            if exchange.answer is not None:
                exchange.answer = exchange.answer[exchange.sock.send(exchange.answer) :]
                if not exchange.answer:
                    self._end(exchange)
        except BlockingIOError:
            return
        except OSError:
            self._end(exchange)

    def _receive(self, exchange: _Exchange) -> None:
        """Receive a part of a request; make the answer at its end, or if it is too long."""
        part = exchange.sock.recv(LONGEST_REQUEST)
        exchange.received += part
        head = exchange.received
        if part and b"\n\r\n" not in head and b"\n\n" not in head and len(head) <= LONGEST_REQUEST:
            return
        exchange.answer = memoryview(_answer(head, self._text) if b"\n" in head else _head("400 Bad Request"))
        self._selector.modify(exchange.sock, selectors.EVENT_WRITE, partial(self._handle_events, exchange))

    def _end(self, exchange: _Exchange) -> None:
        if self._exchanges.pop(exchange.sock.fileno(), None):
            self._selector.unregister(exchange.sock)
            exchange.sock.close()


def _answer(request: bytes, text: Callable[[], str]) -> bytes:
    """Return the answer to a request, of which the first line counts."""
    if len(request) > LONGEST_REQUEST:
        return _head("431 Request Header Fields Too Large")
    words = request.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):  # noqa: PLR2004 method, path, version
        return _head("400 Bad Request")
    if words[0] not in (b"GET", b"HEAD"):
        return _head("405 Method Not Allowed")
    if words[1].split(b"?", 1)[0] not in _PATHS:
        return _head("404 Not Found")
    try:
        body = text().encode()
    except Exception:  # noqa: BLE001 the layout is held on
        return _head("500 Internal Server Error")
    return _head("200 OK", _TYPE, len(body)) + (body if words[0] == b"GET" else b"")


def _head(status: str, kind: str = "text/plain", length: int = 0) -> bytes:
    lines = (f"HTTP/1.0 {status}", f"Content-Type: {kind}", f"Content-Length: {length}", "Connection: close", "", "")
    return "\r\n".join(lines).encode()
