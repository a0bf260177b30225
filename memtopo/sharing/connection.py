"""Connection of a client to a holder: one request and its answer at a time; an error names both ends."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from threading import RLock
from typing import Any, Self, TypeVar

from memtopo.common.errors import BadPacket, ExchangeError, NoLayout, on_failure, reason
from memtopo.common.processes import LONGEST_STEP, RunningClock, is_frozen, is_stopped, standstill
from memtopo.common.text import nearest, process_name
from memtopo.diagnostics.messages import COMPARED
from memtopo.plans.progress import PhasePart
from memtopo.sharing import wire
from memtopo.sharing.claims import lock_owner, lost_layout, remove_stale
from memtopo.sharing.endpoints import Endpoint, endpoint_names
from memtopo.sharing.messages import NOTICES, ProgressNotice, RefusedAnswer
from memtopo.sharing.sockets import SYSTEM, System, abandon_in_children, check_user, connect_at, has_ended, name_lease
from memtopo.sharing.status import LayoutEnded, Notice
from memtopo.sharing.wire import Packet

T = TypeVar("T")

_KEPT_NOTICES = 16
"""Notices that are kept until they are read; older ones are dropped, but for the one of changes."""

_MOST_NAMED = _KEPT_NOTICES * wire.LARGEST
"""Bytes of the names of exports in the kept notice of changes."""

_MOST_NOTICES = 1000
"""Notices that may arrive before the answer to one request, or between two readings of notices."""

_LONGEST_REASON = 400
_FINAL = ("packet", "version", "request", "forbidden", "busy")
"""Codes of errors after which the holder ends the connection."""

_CLOSED = socket.socket(socket.AF_UNIX)
"""A closed socket."""
_CLOSED.close()


class HolderConnection:
    """A connection to a holder. `timeout` is in seconds, for each answer.

    A late or malformed answer ends the connection, since the next answer could not be matched to its request; so does
    an exception that interrupts a request, such as that of a signal handler. Threads may send requests and wait for
    notices at once. In a forked child, the connection is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        path: str,
        *,
        timeout: float,
        allow_uids: Collection[int] = (),
        system: System = SYSTEM,
    ) -> None:
        self.timeout = timeout
        self.path = path
        self.system = system
        self._sock = sock
        self._clock = RunningClock(system.now)
        self._exchanging = RLock()
        self._notices: deque[Notice] = deque()
        self._received_notices = 0
        self._named = False
        self._lease: socket.socket | None = None
        self.progress: Callable[[str, PhasePart], None] = lambda _phase, _part: None
        """Called with the phase of the work on a request, and with its steps, at a notice of its progress."""
        self.peer = system.peer(sock)
        self.pid, self.uid = self.peer
        self._ends = _ends(path, self.peer.pid)
        abandon_in_children(self)
        with on_failure(self.close):
            check_user(self.peer, f"the holder at {path!r}", allow_uids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, name: str, kind: type[T], *, timeout: float | None = None, **fields: Any) -> T:
        """Send a request, and read its answer, which carries no descriptors. Raises `ExchangeError`."""
        packet = self.exchange(name, timeout=timeout, **fields)
        if packet.fds:
            packet.close()
            raise self.untrusted(f"the answer to '{name}' came with descriptors")
        with self.validated():
            return wire.read(kind, packet.message, f"the answer to '{name}'")

    @contextmanager
    def validated(self) -> Iterator[None]:
        """Read an answer; an invalid one ends the connection, and the error names both ends."""
        try:
            yield
        except BadPacket as error:
            raise self.untrusted(error.message) from error

    def exchange(self, request: str, *, timeout: float | None = None, **fields: Any) -> Packet:
        """Send a request and return its answer, whose message is the object under `ok`. Raises `ExchangeError`.

        A request that was refused since packets before it were unread is sent once more: a notice was among them,
        which has been read before the refusal.
        """
        with self._exchanging:
            try:
                return self._exchange_once(request, timeout, fields)
            except ExchangeError as error:
                if error.code != "unread":
                    raise
            return self._exchange_once(request, timeout, fields)

    def _exchange_once(self, request: str, timeout: float | None, fields: Mapping[str, Any]) -> Packet:
        if self._sock.fileno() < 0:
            raise self.error("gone", f"'{request}' cannot be sent: the connection has ended")
        data = wire.encode({"request": request, **fields})
        patience = self.timeout if timeout is None else timeout
        until = self._clock.time() + patience
        try:
            try:
                wire.send(self._sock, data)
            except BlockingIOError as error:
                self.close()
                raise self.error("timeout", f"the holder does not read; '{request}' cannot be sent") from error
            except (BrokenPipeError, ConnectionResetError):
                pass  # the packets that it sent before it closed can still be read
            while packet := self._next_of_running(until, request):
                if not self._store_notice(packet):
                    return self._answer(packet, request)
        except ExchangeError:  # a refusal, or the connection has ended
            raise
        except BaseException:  # of a signal handler, or of `progress`: the answer is still to come
            self.close()
            raise
        self.close()
        hint = "the holder may be busy: a check of many mappings takes seconds"
        if self._stopped():
            patience = min(patience, self.timeout)
        if held_up := standstill(self.peer.pid):
            hint = f"the holder {held_up}"
        raise self.error("timeout", f"no answer to '{request}' within {patience:g} s", hint)

    def notice(self, timeout: float) -> Notice | None:
        """Return the next notice, if one arrives in time. Raises `ExchangeError` if the holder is gone.

        Notices of an unknown kind are ignored.
        """
        until = self._clock.time() + timeout
        while True:
            with self._exchanging:
                if not self._notices and self._sock.fileno() < 0:
                    raise self._ended()
                while not self._notices and (packet := self._next(self._clock.time())):
                    if not self._store_notice(packet):
                        packet.close()
                        raise self.untrusted("it sent an answer without a request")
                self._received_notices = 0
                if self._notices:
                    return self._notices.popleft()
            if not self._readable(until):
                return None

    def name_lease(self) -> None:
        """Name the socket, so that this process is found as an importer even after the end of the holder."""
        if not self._named:
            name_lease(self._sock, self.path, self.peer.pid)
        self._named = True

    def wait_closed(self, timeout: float) -> tuple[bool, Mapping[str, Any] | None]:
        """Wait until the other end closes. Return whether it did in time, and the notice of the end that it sent.

        Other packets are discarded.
        """
        until, end = self._clock.time() + timeout, None
        try:
            while packet := self._next(until, "the end"):
                packet.close()
                if packet.message.get("notice") == "ended":
                    end = packet.message
        except ExchangeError as error:
            return error.code == "gone", end
        return False, end

    def gone(self) -> bool:
        """Return at once whether the other end has closed; what it sent before can still be read."""
        return self._sock.fileno() < 0 or has_ended(self._sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """End the connection, and with it the lease, even if a process forked outside of Python has it open."""
        with suppress(OSError):  # it has ended
            self._sock.shutdown(socket.SHUT_RDWR)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors without an end of the connection, which a forked child shares with its parent."""
        self._sock.close()
        if self._lease:
            self._lease.close()

    def _end(self) -> None:
        """End the connection after the holder did; a named socket stays open, since what was imported may still be."""
        if self._named and self._sock.fileno() >= 0:
            self._lease, self._sock = self._sock, _CLOSED
        self._sock.close()

    def untrusted(self, what: str) -> ExchangeError:
        """Close the connection, and return an error for a holder that breaks the protocol."""
        self.close()
        return self.error("lie", f"the holder cannot be trusted: {what}")

    def error(self, code: str, message: str, hint: str | None = None) -> ExchangeError:
        """Return an error that names both ends."""
        return ExchangeError(code, f"{message} {self._ends}", hint=hint)

    def _ended(self, request: str = "") -> ExchangeError:
        if request:
            return self.error("gone", f"the holder ended the connection before '{request}' was answered")
        hint = "imports over fd and fabric stay valid until they are closed; imports over ipc do not"
        return self.error("gone", "the holder has ended the connection", hint)

    def _next_of_running(self, until: float, request: str) -> Packet | None:
        """Return the next packet; None if none arrives in time, or after `timeout` seconds of a stopped holder."""
        while True:
            if packet := self._next(min(until, self._clock.time() + self.timeout), request):
                return packet
            if self._clock.time() >= until or self._stopped():
                return None

    def _stopped(self) -> bool:
        """Return whether the holder is stopped or frozen; false for one outside of this pid namespace."""
        pid = self.peer.pid
        return bool(pid) and (is_stopped(pid) or is_frozen(pid))

    def _next(self, until: float, request: str = "") -> Packet | None:
        """Return the next packet, an answer to a request or a notice; None if none arrives in time."""
        while True:
            try:
                packet = wire.receive(self._sock)
            except BlockingIOError:
                if self._readable(until):
                    continue
                return None
            except ConnectionResetError:
                continue  # it closed with unread packets: reported once, before the packets that it had sent
            except BadPacket as error:
                self.close()
                what = f"the answer to '{request}'" if request else "a notice"
                raise self.error(error.code, f"{what} is malformed: {error.message}") from error
            except OSError as error:
                self._end()
                where = f"'{request}'" if request else "a notice"
                raise self.error("gone", f"the connection broke at {where}: {reason(error)}") from error
            if packet is None:
                self._end()
                raise self._ended(request)
            return packet

    def _readable(self, until: float) -> bool:
        if self._sock.fileno() < 0:
            return True
        while (left := until - self._clock.time()) > 0:
            if self.system.wait((self._sock,), min(left, LONGEST_STEP)):
                return True
        return False

    def _store_notice(self, packet: Packet) -> bool:
        """Store a packet that is a notice. Return whether it is one."""
        if "notice" not in packet.message:
            return False
        kind = packet.message["notice"]
        with closing(packet), self.validated():
            if packet.fds:
                raise BadPacket("a notice came with descriptors")
            if not isinstance(kind, str):
                raise BadPacket("the notice needs 'notice': a text")
            notice = wire.read(NOTICES[kind], packet.message, "the notice") if kind in NOTICES else None
        if isinstance(notice, ProgressNotice):
            self.progress(notice.phase, PhasePart(notice.done, notice.total))
        elif notice:
            self._keep(notice)
        self._received_notices += 1
        if self._received_notices > _MOST_NOTICES:
            raise self.untrusted(f"it sent more than {_MOST_NOTICES:,} notices")
        return True

    def _keep(self, notice: Notice) -> None:
        """Keep a notice until it is read; the last one of a change has the exports of all before, which it replaces."""
        earlier = next((each for each in self._notices if each.kind == "changed"), None)
        if earlier and notice.kind == "changed":
            self._notices.remove(earlier)
            notice = notice.after(earlier)
            if sum(len(export.encode()) for export in notice.exports) > _MOST_NAMED:
                raise self.untrusted(f"it sent notices that name more than {_MOST_NAMED:,} bytes of exports")
        self._notices.append(notice)
        if len(self._notices) > _KEPT_NOTICES:
            self._notices.remove(next(each for each in self._notices if each.kind != "changed"))

    def _answer(self, packet: Packet, request: str) -> Packet:
        self._received_notices = 0
        if isinstance(packet.message.get("ok"), dict):
            packet.message = packet.message["ok"]
            return packet
        packet.close()
        try:
            refusal = wire.read(RefusedAnswer, packet.message, "the answer").error
        except BadPacket as error:
            raise self.untrusted(f"its answer to '{request}' is neither 'ok' nor 'error'") from error
        if refusal.code in _FINAL:
            self.close()
        hint = refusal.hint[:_LONGEST_REASON] if refusal.hint else None
        raise self.error(refusal.code, refusal.message[:_LONGEST_REASON], hint)


def connected_socket(
    endpoint: Endpoint, *, timeout: float, allow_uids: Collection[int], suggest: bool = True
) -> socket.socket:
    """Connect to the holder at an endpoint.

    Raises `NoLayout` if no process holds a layout there, with a name that was probably meant if it is to `suggest` one,
    and `ExchangeError` if the folder is another user's or the holder does not answer.
    """
    try:
        folder = endpoint.open_folder(allow_uids=allow_uids)
    except FileNotFoundError:
        raise _no_layout(endpoint, suggest=suggest) from None
    try:
        return connect_at(folder, endpoint.file, timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        if not remove_stale(endpoint) and (end := lost_layout(folder, endpoint)):
            raise LayoutEnded(endpoint.layout, end) from None
        pid = lock_owner(folder, endpoint.lock)
        if remove_stale(endpoint):
            raise _no_layout(endpoint, suggest=suggest) from None
        what = f"layout {endpoint.name!r}" if endpoint.name else f"the layout at {endpoint.path!r}"
        message = f"{what} is being built or taken down, and is not served {_ends(endpoint.path, pid)}"
        held_up = standstill(pid or 0)
        hint = f"the holder {held_up}" if held_up else "try again in a moment"
        raise ExchangeError("starting", message, hint=hint) from None
    except BlockingIOError:
        pid = lock_owner(folder, endpoint.lock)
        message = f"no answer to 'connect' within {timeout:g} s {_ends(endpoint.path, pid)}"
        held_up = standstill(pid or 0) or "has a full queue of connections, and may be busy"
        raise ExchangeError("timeout", message, hint=f"the holder {held_up}") from None
    except PermissionError as error:
        message = f"socket {endpoint.path!r} is another user's: {reason(error)} {_ends(endpoint.path, None)}"
        raise ExchangeError("forbidden", message, hint="its holder must allow the uid of this user") from error
    except OSError as error:
        raise ExchangeError("folder", f"socket {endpoint.path!r} cannot be used: {reason(error)}") from error
    finally:
        os.close(folder)


def _no_layout(endpoint: Endpoint, *, suggest: bool) -> NoLayout:
    if endpoint.name is None:
        return NoLayout(f"no layout is held at {endpoint.path!r}", hint="'memtopo ls' shows what is held")
    known = [name for name in endpoint_names() if name != endpoint.name] if suggest else []
    meant = nearest(endpoint.name, known[:COMPARED])
    hint = f"did you mean {meant!r}? " if meant else ""
    message = f"no layout {endpoint.name!r} is held (looked for {endpoint.path})"
    return NoLayout(message, hint=f"{hint}'memtopo ls' shows what is held")


def _ends(path: str, holder: int | None) -> str:
    known = "unknown" if holder is None else process_name(holder)
    return f"(holder: {known} at {path}; client: process {os.getpid()})"
