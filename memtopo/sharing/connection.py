"""One question and its answer at a time, over a connection to a holder. Every failure names both ends, and ends it."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from memtopo.common.text import nearest
from memtopo.diagnostics.messages import COMPARED
from memtopo.sharing import wire
from memtopo.sharing.claims import holder, sweep
from memtopo.sharing.endpoints import Endpoint, names
from memtopo.sharing.errors import BadPacket, ExchangeError, NoLayout, reason
from memtopo.sharing.messages import Fields
from memtopo.sharing.sockets import dial, peer, vet
from memtopo.sharing.status import Notice
from memtopo.sharing.wire import Packet

_KEPT = 16
"""Notices that are kept until somebody asks for them; the last ones count."""

_MOST_NOTICES = 1000
_TOLD = 400
_LAST = ("packet", "version", "request", "forbidden", "busy")
"""Codes after which the holder ends the connection."""


class HolderConnection:
    """A connection to a holder. `timeout` is in seconds, for each answer.

    An answer that is late or breaks the protocol ends the connection, since the next one could not be trusted.
    """

    def __init__(self, sock: socket.socket, path: str, *, timeout: float, allow_uids: Collection[int] = ()) -> None:
        self.timeout = timeout
        self.path = path
        self._sock = sock
        self._notices: deque[Notice] = deque(maxlen=_KEPT)
        self._heard = 0
        self.peer = peer(sock)
        self._ends = f"(holder: process {self.peer.pid} at {path}; asked by process {os.getpid()})"
        try:
            vet(self.peer, f"the holder at {path!r}", allow_uids)
        except BaseException:
            self.close()
            raise

    def ask(self, request: str, *, timeout: float | None = None, **fields: Any) -> Packet:
        """Ask, and give the packet whose message is what stands under `ok`. Raises `ExchangeError`."""
        if self._sock.fileno() < 0:
            raise self.fault("gone", f"'{request}' cannot be asked: the connection has ended")
        self._send(wire.encode({"request": request, **fields}), request)
        patience = self.timeout if timeout is None else timeout
        until = time.monotonic() + patience
        while packet := self._next(until, request):
            if not self._noted(packet):
                return self._answer(packet, request)
        self.close()
        hint = "it may be stopped, or at work: a check of many mappings takes seconds"
        raise self.fault("timeout", f"no answer to '{request}' within {patience:g} s", hint)

    def notice(self, timeout: float) -> Notice | None:
        """The next notice, if one comes within the time. Raises `ExchangeError` where the holder is gone."""
        packet = None if self._notices else self._next(time.monotonic() + timeout, "notice")
        if packet and not self._noted(packet):
            packet.close()
            raise self.broken("it said something that nobody asked for")
        return self._notices.popleft() if self._notices else None

    def ended(self, timeout: float) -> bool:
        """Whether the other end closes within the time; what it still says does not matter."""
        until = time.monotonic() + timeout
        try:
            while packet := self._next(until, "the end"):
                packet.close()
        except ExchangeError as error:
            return error.code == "gone"
        return False

    def gone(self) -> bool:
        """Whether the other end has closed, without waiting; what it still said can be read nevertheless."""
        if self._sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def broken(self, what: str) -> ExchangeError:
        """An error for a holder that lies or breaks the protocol, which is not talked to any more."""
        self.close()
        return self.fault("lie", f"the holder cannot be trusted: {what}")

    def fault(self, code: str, message: str, hint: str | None = None) -> ExchangeError:
        """An error that names both ends."""
        return ExchangeError(code, f"{message} {self._ends}", hint=hint)

    def _send(self, data: bytes, request: str) -> None:
        try:
            wire.send(self._sock, data)
        except BlockingIOError as error:
            self.close()
            raise self.fault("timeout", f"the holder does not read; '{request}' could not be asked") from error
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it said before it left is still there to be read

    def _next(self, until: float, request: str) -> Packet | None:
        """The next packet; None where none came in time."""
        while True:
            try:
                packet = wire.receive(self._sock)
            except BlockingIOError:
                if self._readable(until):
                    continue
                return None
            except ConnectionResetError:
                continue  # it closed without reading all; told once, before what it had sent
            except BadPacket as error:
                self.close()
                raise self.fault(error.code, f"the answer to '{request}' is malformed: {error.message}") from error
            except OSError as error:
                self.close()
                raise self.fault("gone", f"the connection broke at '{request}': {reason(error)}") from error
            if packet is None:
                self.close()
                raise self.fault("gone", f"the holder ended the connection before '{request}' was answered")
            return packet

    def _readable(self, until: float) -> bool:
        left = until - time.monotonic()
        poll = select.poll()  # select itself knows no descriptor above 1,023
        poll.register(self._sock, select.POLLIN)
        return left > 0 and bool(poll.poll(left * 1000))

    def _noted(self, packet: Packet) -> bool:
        """Whether it is a notice, which is then kept for who asks for it."""
        if "notice" not in packet.message:
            return False
        try:
            self._notices.append(_notice(packet))
        except BadPacket as error:
            packet.close()
            raise self.broken(error.message) from error
        self._heard += 1
        if self._heard > _MOST_NOTICES:
            raise self.broken("it repeats itself without an end")
        return True

    def _answer(self, packet: Packet, request: str) -> Packet:
        if isinstance(packet.message.get("ok"), dict):
            packet.message = packet.message["ok"]
            return packet
        packet.close()
        try:
            refusal = self._refusal(Fields(packet.message, "the answer").object("error"))
        except BadPacket as error:
            raise self.broken(f"its answer to '{request}' is neither 'ok' nor 'error'") from error
        raise refusal

    def _refusal(self, fields: Fields) -> ExchangeError:
        code, message, hint = fields.text("code", 32), fields.text("message"), fields.text_or_none("hint")
        if code in _LAST:
            self.close()
        return self.fault(code, message[:_TOLD], hint[:_TOLD] if hint else None)


def _notice(packet: Packet) -> Notice:
    if packet.fds:
        raise BadPacket("a notice came with descriptors")
    fields = Fields(packet.message, "the notice")
    return Notice(fields.word("notice", "releasing"), fields.seconds("grace"))


def reach(place: Endpoint, *, timeout: float, allow_uids: Collection[int] = ()) -> HolderConnection:
    """A connection to the holder at a place.

    Raises `NoLayout` where nobody holds one there, `ExchangeError` where the holder is another user's or does not
    answer.
    """
    try:
        folder = place.open(also=allow_uids)
    except FileNotFoundError:
        raise _nobody(place) from None
    try:
        sock = dial(folder, place.file, timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        raise _not_served(place, holder(folder, place.lock)) from None
    except BlockingIOError:
        told = f"no answer to 'connect' within {timeout:g} s {_ends(place, holder(folder, place.lock))}"
        raise ExchangeError("timeout", told, hint="its holder may be stopped; 'memtopo ls' shows it") from None
    except PermissionError as error:
        told = f"socket {place.path!r} is another user's: {reason(error)} {_ends(place, None)}"
        raise ExchangeError("forbidden", told, hint="its holder has to let this user in: --allow-uid") from error
    except OSError as error:
        raise ExchangeError("folder", f"socket {place.path!r} is of no use: {reason(error)}") from error
    finally:
        os.close(folder)
    return HolderConnection(sock, place.path, timeout=timeout, allow_uids=allow_uids)


def _not_served(place: Endpoint, pid: int | None) -> ExchangeError | NoLayout:
    """What a place means where nobody listens: the holder is dead, or it has the name and serves nobody yet."""
    if sweep(place):
        return _nobody(place)
    what = f"layout {place.name!r}" if place.name else f"the layout at {place.path!r}"
    told = f"{what} is being built or taken down, and not served {_ends(place, pid)}"
    return ExchangeError("starting", told, hint="try again in a moment")


def _nobody(place: Endpoint) -> NoLayout:
    if place.name is None:
        return NoLayout(f"nobody holds a layout at {place.path!r}", hint="'memtopo ls' shows what is held")
    known = [name for name in names() if name != place.name]
    meant = nearest(place.name, known[:COMPARED])
    hint = f"did you mean {meant!r}? " if meant else ""
    return NoLayout(
        f"no layout {place.name!r} is held (looked for {place.path})", hint=f"{hint}'memtopo ls' shows what is held"
    )


def _ends(place: Endpoint, pid: int | None) -> str:
    return f"(holder: {f'process {pid}' if pid else 'not known'} at {place.path}; asked by process {os.getpid()})"
