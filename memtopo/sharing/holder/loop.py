"""Event loop of a holder: one thread, which never waits for a single client and checks for its end between events.

Requests are answered by `changes`, `commits` and `responses`; a release and a lend are begun here.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from msgspec import Struct, to_builtins

from memtopo.common.errors import BadPacket, ExchangeError, InternalError, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.text import first_of, process_name, signal_name
from memtopo.sharing import messages
from memtopo.sharing.claims import Claim
from memtopo.sharing.holder.changes import Changes, Reloads, releasing, require_owner
from memtopo.sharing.holder.clients import ClientConnection, Clients
from memtopo.sharing.holder.commits import Commits
from memtopo.sharing.holder.metrics import MetricsFile, MetricsServer, StatusReports
from memtopo.sharing.holder.responses import Responder, TooManyInFlight
from memtopo.sharing.holder.state import LISTED, HoldSummary, Shutdown, Why, still_bound
from memtopo.sharing.holder.systemd import Notifier
from memtopo.sharing.messages import HandlesRequest, LendRequest, Request, TransitionRequest, encode_error
from memtopo.sharing.sockets import SYSTEM, Listener, System, abandon_in_children
from memtopo.sharing.status import Status

INTERVAL = 0.5
"""Seconds between two calls of `stop`, which may look for its reason: the death of a process sends no signal."""
_INTERVAL_WITHOUT_SIGNALS = 0.2
_RETRY_PAUSE = 0.01


class HoldTerms(Struct, frozen=True):
    """Terms of a hold: the limit of clients, their `patience` and `grace` in seconds, other users, and its end.

    `stop` returns the number of a signal, a negative number if a part of the layout has ended, or else 0. It is called
    at least every `interval` seconds. Once the hold has ended, clients are served until `finished` returns true.
    """

    max_clients: int
    patience: float
    allow_uids: Collection[int]
    stop: Callable[[], int]
    grace: float
    interval: float
    system: System = SYSTEM
    finished: Callable[[], bool] = lambda: True


class _Retry(Struct, frozen=True):
    """A request that is retried until a time of the monotonic clock."""

    connection: ClientConnection
    request: Request
    until: float


class ServerLoop:
    """Serves until a signal, a release or a deadline."""

    def __init__(
        self, selector: selectors.BaseSelector, responder: Responder, shutdown: Shutdown, terms: HoldTerms
    ) -> None:
        self._selector, self._responder, self._shutdown, self._terms = selector, responder, shutdown, terms
        self._now = now = terms.system.now
        self._clients = Clients(
            selector,
            self._handle_events,
            most=terms.max_clients,
            patience=terms.patience,
            allow_uids=terms.allow_uids,
            events=responder.events,
            system=terms.system,
        )
        self._progress = responder.supervision.progress
        self._changes = Changes(
            responder, self._clients, partial(self._begin_shutdown, "failure", 0), self._progress, RunningClock(now)
        )
        self._commits = Commits(
            responder, self._clients, self._changes.renew, self._changes.notify_committed, RunningClock(now)
        )
        self._retries: list[_Retry] = []
        self._awaiting_check: list[ClientConnection] = []
        self._systemd = Notifier()
        self._reloads = Reloads(responder, self._changes, self._systemd, responder.supervision.reload)
        self._interval = min(terms.interval, _INTERVAL_WITHOUT_SIGNALS)
        self._published: list[MetricsFile | MetricsServer | StatusReports] = []
        self._last_internal = ""

    def listen(self, listener: socket.socket, wakeups: Collection[socket.socket]) -> None:
        """Accept connections from a socket, and check for the end whenever one of `wakeups` is readable."""
        self._listener = Listener(
            self._selector, listener, self._clients.admit, most=self._terms.max_clients, clock=self._now
        )
        abandon_in_children(self)
        for wakeup in wakeups:
            self._interval = self._terms.interval
            self._selector.register(wakeup, selectors.EVENT_READ, partial(_drain, wakeup))

    def run(self) -> None:
        """Serve until the shutdown is complete."""
        while True:
            now = self._now()
            if number := self._terms.stop():
                self._begin_shutdown("signal" if number > 0 else "ended", self._terms.grace, max(number, 0))
            elif self._shutdown.due(now):
                self._begin_shutdown("deadline", self._terms.grace)
            complete = self._shutdown.why and self._shutdown.complete(now, bound=bool(self._clients.bound))
            if complete and self._terms.finished():
                return
            self._handle_ready(self._wait(now))
            if self._awaiting_check:  # the requests of connections that were just accepted are answered first
                self._handle_ready(0.0)
            self._retry()
            self._check()
            if not self._shutdown.why:
                self._go_on_after(self._reloads.begin)
            self._go_on_after(partial(self._responder.lending.leave, self._clients.connected))
            self._go_on_after(self._changes.advance)
            if not self._shutdown.why:
                self._go_on_after(self._commits.advance)
            self._reloads.end()
            self._listener.advance()
            self._systemd.advance(self._now())
            self._clients.drop_unresponsive()
            for each in self._published:
                self._go_on_after(partial(each.advance, self._now()))

    def _go_on_after(self, work: Callable[[], None]) -> None:
        """Do a part of the work of a holder; an error of memtopo itself is an event, and the layout is held on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 whatever it is, the layout is worth more
            self._record_internal(error)

    def _record_internal(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if reason != self._last_internal:  # the same work may fail again and again
            self._last_internal = reason
            self._responder.events.add("internal error", {"reason": reason}, "error")

    def publish(self, listener: socket.socket | None, path: str) -> None:
        """Publish what is supervised of the layout at the `path` of its socket.

        Its metrics go to a file and to connections to `listener`, its status to its other nodes.
        """
        metrics, nodes = self._responder.supervision.metrics, self._responder.supervision.nodes
        epoch = self._terms.system.epoch

        def status() -> Status:
            return self._responder.status(path, self._clients.all())

        def text(now: float) -> str:
            assert metrics
            return metrics.render(status(), self._responder.statistics(), now)

        if metrics and metrics.write:
            self._published.append(MetricsFile(text, metrics.write, epoch))
        if listener:
            server = MetricsServer(self._selector, listener, lambda: text(epoch()), self._now, self._terms.allow_uids)
            self._published.append(server)
        if nodes:
            self._published.append(StatusReports(status, nodes.report))
        for each in self._published:
            self._go_on_after(partial(each.advance, self._now()))

    def finish(self, claim: Claim, seconds: float) -> HoldSummary:
        """Answer the clients that requested the release, pass their connections to the claim, and return the result."""
        assert self._shutdown.why
        responder, counters = self._responder, self._responder.counters
        requesters = [each for each in self._clients.all() if each.awaits_release]
        others = [each for each in self._clients.all() if not each.awaits_release]
        lost = tuple(each.importer for each in self._clients.bound)
        kept = tuple(each for each in responder.importers(others) if each.handles and not each.bound)
        answer = {"ok": responder.released(lost, kept)}
        for each in requesters:
            if not each.release_answered:
                with suppress(OSError):
                    each.send(answer)
            self._clients.remove(each)
            claim.keep_open(each.sock)
        why, number = self._shutdown.why, self._shutdown.signal
        counts = {"clients": counters.clients, "handles": counters.handles, "lost": len(lost), "kept": len(kept)}
        responder.events.add("ended", {"layout": responder.name, "why": why, "seconds": round(seconds, 1), **counts})
        notes = (*self._systemd.failures, *filter(None, (each.failure for each in self._published)))
        return HoldSummary(why, number, seconds, counters.clients, counters.handles, lost, kept, notes)

    def notify_ready(self) -> None:
        """Notify systemd that the layout is served."""
        self._systemd.ready(self._responder.holding)

    def close(self) -> None:
        """Close all connections."""
        for each in tuple(self._clients.all()):
            self._clients.remove(each)
            each.sock.close()
        self._responder.lending.close_handles(self._responder.offers)
        for published in self._published:
            published.close()

    def abandon(self) -> None:
        """Close all descriptors without a change of the selector, which a forked child shares with its parent."""
        self._selector.close()
        self._listener.abandon()
        self._clients.abandon()
        self._responder.lending.close_handles(self._responder.offers)

    def _wait(self, now: float) -> float:
        """Return for how many seconds to wait for events."""
        waits = [
            self._terms.patience / 2,
            self._interval,
            self._shutdown.remaining(now),
            self._changes.remaining(),
            self._commits.remaining(),
            self._systemd.interval,
            _RETRY_PAUSE if self._retries else None,
            self._listener.pause,
        ]
        return min(wait for wait in waits if wait is not None)

    def _handle_ready(self, seconds: float) -> None:
        for key, events in self._selector.select(seconds):
            key.data(events)

    def _handle_events(self, connection: ClientConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.flush()
            elif not self._handle_packet(connection):
                return
        except BlockingIOError:
            return
        except OSError:
            self._clients.drop(connection)
            return
        self._clients.update_events(connection)

    def _handle_packet(self, connection: ClientConnection) -> bool:
        """Receive a request and answer it. Return false if no event of the connection is to be waited for."""
        try:
            packet = connection.receive()
            if packet is None:
                self._clients.drop(connection)
                return False
            return self._answer(connection, messages.read_request(packet))
        except BadPacket as error:
            connection.closing = True
            connection.send(encode_error(error))
        return True

    def _answer(self, connection: ClientConnection, request: Request, until: float | None = None) -> bool:
        """Answer a request. Return false if it is answered later; a retried one is refused after `until`."""
        now = self._now()
        try:
            if request.request == "check":
                self._responder.require_complete()
                self._awaiting_check.append(connection)
                self._clients.pause(connection)
                return False
            return self._execute(connection, request)
        except TooManyInFlight as error:
            if until is not None and now >= until:
                connection.send(encode_error(error))
                return True
            self._retries.append(_Retry(connection, request, until or now + self._terms.patience))
            self._clients.pause(connection)
            return False
        except BadPacket:
            raise
        except MemtopoError as error:
            connection.send(encode_error(error))
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 as above
            self._record_internal(error)
            connection.send(encode_error(InternalError(f"internal error: {type(error).__name__}: {error}")))
        return True

    def _execute(self, connection: ClientConnection, request: Request) -> bool:
        """Answer a request. Return false if it is answered later. Raises `MemtopoError`."""
        acts = isinstance(request, TransitionRequest | messages.ReleaseRequest | messages.SaveRequest)
        if acts and connection.gone():
            return True  # it timed out while this process was stopped, and has reported that nothing was done
        match request:
            case TransitionRequest():
                return self._changes.request(connection, request)
            case messages.WaitRequest():
                return self._await_commit(connection, request)
            case messages.ReleaseRequest():
                self._release(connection, request)
            case messages.CommitRequest():
                require_owner(connection, "commit")
                self._commits.commit(connection, request)
            case messages.SaveRequest():
                self._changes.require_changeable(connection, "save")
                with self._changes.progress.to(connection):
                    saved = self._responder.saved(request.folder)
                connection.send({"ok": to_builtins(saved)})
            case HandlesRequest() | LendRequest():
                self._send_handles(connection, request)
            case messages.LetGoRequest():
                self._responder.answer(connection, request, self._clients.all())
                self._changes.notify_late(connection, request.exports)
            case _:
                self._responder.answer(connection, request, self._clients.all())
        return True

    def _send_handles(self, connection: ClientConnection, request: HandlesRequest | LendRequest) -> None:
        """Answer a request for handles; a client that is too early is notified when it may repeat the request."""
        self._clients.check_importer(connection)
        try:
            self._changes.require_unchanged(request.export)
            self._responder.answer(connection, request, self._clients.all())
        except ExchangeError as error:
            if error.code in ("absent", "changing"):
                self._responder.record_early(connection, request.export)
            raise

    def _await_commit(self, connection: ClientConnection, request: messages.WaitRequest) -> bool:
        self._responder.require_complete()
        if self._responder.releasing:
            raise releasing()
        if request.request == "write":
            require_owner(connection, "write")
        else:
            self._clients.check_importer(connection)
        self._commits.begin(connection, request)
        return False

    def _release(self, connection: ClientConnection, request: messages.ReleaseRequest) -> None:
        require_owner(connection, "release")
        bound = [each for each in self._clients.bound if each is not connection]
        if bound and not request.force:
            raise still_bound(first_of([process_name(each.peer.pid) for each in bound], LISTED))
        if self._responder.nodes and not request.force:
            self._responder.nodes.require_unbound()
        connection.awaits_release = True
        self._responder.events.add("release requested", {"by": process_name(connection.peer.pid)})
        self._begin_shutdown("release", request.grace)
        if self._responder.supervision.end():  # the rest of the teardown is that of the processes
            connection.send({"ok": self._responder.released((), ())})
            connection.release_answered = True

    def _check(self) -> None:
        """Check once for all clients that wait for it, after the requests of others were answered."""
        waiting, self._awaiting_check = self._awaiting_check, []
        if not waiting:
            return
        with self._progress.to(*waiting):
            answer = self._responder.check()
        for each in waiting:
            self._clients.answer(each, answer)

    def _begin_shutdown(self, why: Why, grace: float, signal: int = 0) -> None:
        if not self._shutdown.begin(why, self._now() + grace, signal):
            return
        self._responder.releasing = True
        because = {"signal": signal_name(signal)} if signal else {}
        self._responder.events.add("ending", {"why": why, **because})
        self._changes.refuse(releasing())
        self._commits.refuse(releasing())
        self._systemd.stopping()
        for each in tuple(self._clients.all()):
            if each.attached and not each.awaits_release:
                self._clients.deliver(each, {"notice": "releasing", "grace": grace})

    def _retry(self) -> None:
        retries, self._retries = self._retries, []
        for each in retries:
            if each.connection not in self._clients.all():
                continue
            self._clients.resume(each.connection)
            try:
                answered = self._answer(each.connection, each.request, each.until)
            except (OSError, BadPacket):
                self._clients.drop(each.connection)
                continue
            if answered:
                self._clients.update_events(each.connection)


def _drain(sock: socket.socket, _events: int = 0) -> None:
    """Discard the bytes of signals; the flag that their handler sets is what counts."""
    with suppress(BlockingIOError):
        while sock.recv(4096):
            pass
