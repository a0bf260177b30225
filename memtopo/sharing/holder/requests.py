"""Requests of clients: their dispatch, and the requests that change, commit or release the layout."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import to_builtins

from memtopo.common.errors import BadPacket, ExchangeError, MemtopoError
from memtopo.common.text import first_of, process_name
from memtopo.sharing import messages
from memtopo.sharing.holder.changes import ChangeRequest, Changes
from memtopo.sharing.holder.clients import ClientConnection, Clients
from memtopo.sharing.holder.commits import Commits
from memtopo.sharing.holder.responses import Responder
from memtopo.sharing.holder.state import LISTED, Reload, Shutdown, still_bound
from memtopo.sharing.holder.systemd import Notifier
from memtopo.sharing.messages import HandlesRequest, LendRequest, ReleaseRequest, Request, TransitionRequest


class Requests:
    """Carries out the requests of the clients of one layout. `end` begins its release, with some seconds of grace."""

    def __init__(
        self,
        responder: Responder,
        clients: Clients,
        changes: Changes,
        commits: Commits,
        shutdown: Shutdown,
        end: Callable[[float], None],
    ) -> None:
        self._responder, self._clients, self._changes, self._commits = responder, clients, changes, commits
        self._shutdown, self._end = shutdown, end

    def execute(self, connection: ClientConnection, request: Request) -> bool:
        """Answer a request. Return false if it is answered later. Raises `MemtopoError`."""
        if isinstance(request, TransitionRequest | ReleaseRequest | messages.SaveRequest) and connection.gone():
            return True  # it timed out while this process was stopped, and has reported that nothing was done
        match request:
            case TransitionRequest():
                return self._switch_or_change(connection, request)
            case messages.WaitRequest():
                return self._await_commit(connection, request)
            case ReleaseRequest():
                self._release(connection, request)
            case messages.CommitRequest():
                _require_owner(connection, "commit")
                self._commits.commit(connection, request)
            case messages.SaveRequest():
                self._require_changeable(connection, "save")
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

    def _switch_or_change(self, connection: ClientConnection, request: TransitionRequest) -> bool:
        try:
            self._require_changeable(connection, request.request)
            about = {}
            if isinstance(request, messages.SwitchRequest):
                planned, about = self._responder.planned_switch(request.state), {"state": request.state}
            else:
                assert isinstance(request, messages.SpecRequest)
                source = connection.receive_source(request.source)
                if source is None:
                    connection.send({"ok": {"received": connection.received_source}})
                    return True
                planned = self._responder.require_changeable().change(source, request.generation)
            terms = request.force, request.check == "full", request.wait
            return self._changes.begin(ChangeRequest(connection, request.request, planned, about, *terms))
        except BadPacket:
            raise
        except MemtopoError as error:
            self._changes.record_failure(request.request, process_name(connection.peer.pid), error)
            raise

    def _await_commit(self, connection: ClientConnection, request: messages.WaitRequest) -> bool:
        self._responder.require_complete()
        if self._shutdown.why:
            raise releasing()
        if request.request == "write":
            _require_owner(connection, "write")
        else:
            self._clients.check_importer(connection)
        self._commits.begin(connection, request)
        return False

    def _require_changeable(self, connection: ClientConnection, action: str) -> None:
        """Raise `ExchangeError` for a client of another user, during a release, and during another change."""
        _require_owner(connection, action)
        self._responder.require_complete()
        if self._shutdown.why:
            raise releasing()
        self._changes.require_none()

    def _release(self, connection: ClientConnection, request: ReleaseRequest) -> None:
        _require_owner(connection, "release")
        bound = [each for each in self._clients.bound if each is not connection]
        if bound and not request.force:
            raise still_bound(first_of([process_name(each.peer.pid) for each in bound], LISTED))
        if self._responder.nodes and not request.force:
            self._responder.nodes.require_unbound()
        connection.awaits_release = True
        self._responder.events.add("release requested", {"by": process_name(connection.peer.pid)})
        self._end(request.grace)
        if self._responder.supervision.end():  # the rest of the teardown is that of the processes
            connection.send({"ok": self._responder.released((), ())})
            connection.release_answered = True


def _require_owner(connection: ClientConnection, action: str) -> None:
    """Raise `ExchangeError` for a client of another user, who may only import."""
    if connection.peer.uid not in (0, os.geteuid()):
        raise ExchangeError("owner", f"only uid {os.geteuid()}, which holds it, may {action} the layout")


def releasing() -> ExchangeError:
    """Return the error for a request that comes too late."""
    return ExchangeError("releasing", "the layout is being released")


WAIT = 5.0
"""Seconds that importers have to let go of memory that goes by a reload."""


class Reloads:
    """Begins the changes of reloads, and notifies systemd of both ends of each. A refusal is an event."""

    def __init__(self, responder: Responder, changes: Changes, systemd: Notifier, reload: Reload) -> None:
        self._responder, self._changes, self._systemd, self._reload = responder, changes, systemd, reload
        self._under_way = False

    def begin(self) -> None:
        """Begin a change to the spec that is read again, if a signal requests it."""
        read = self._reload()
        if read is None:
            return
        if not self._under_way:
            self._systemd.reloading()
        self._under_way = True
        try:
            source = read()
            self._changes.require_none()
            planned = self._responder.require_changeable().change(source, None)
            self._changes.begin(ChangeRequest(None, "reload", planned, {}, force=False, full=False, wait=WAIT))
        except MemtopoError as error:
            self._changes.record_failure("reload", "SIGHUP", error)

    def end(self) -> None:
        """Notify systemd once the change is made or refused."""
        if self._under_way and self._changes.remaining() is None:
            self._under_way = False
            self._systemd.ready(self._responder.holding)
