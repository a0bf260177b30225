"""Requests of clients: their dispatch, and those that change, commit or release the layout."""

from __future__ import annotations

import os
from collections.abc import Callable

from memtopo.common.errors import MemtopoError
from memtopo.common.text import process_name
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.holder.changes import LONGEST_WAIT, ChangeRequest, Changes
from memtopo.sharing.holder.clients import ClientConnection, Clients
from memtopo.sharing.holder.commits import Commits
from memtopo.sharing.holder.responses import Responder, request_of, still_bound
from memtopo.sharing.holder.state import Shutdown
from memtopo.sharing.messages import Fields
from memtopo.sharing.offers import LONGEST_NAME

LONGEST_GRACE = 3600.0


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

    def execute(self, connection: ClientConnection, fields: Fields) -> bool:
        """Answer a request. Return false if it is answered later. Raises `MemtopoError`."""
        request = request_of(fields)
        if request in ("switch", "change"):
            return self._switch_or_change(connection, request, fields)
        if request == "release":
            self._release(connection, fields)
            return True
        if request in ("write", "await"):
            return self._await_commit(connection, fields, writes=request == "write")
        if request == "commit":
            _require_owner(connection, "commit")
            self._commits.commit(connection, fields)
            return True
        if request == "handles":
            self._send_handles(connection, fields)
        else:
            self._responder.answer(connection, request, fields, self._clients.all())
        return True

    def _send_handles(self, connection: ClientConnection, fields: Fields) -> None:
        """Answer a request for handles; a client that is too early is notified when it may repeat the request."""
        export = fields.text("export", LONGEST_NAME)
        self._clients.check_importer(connection)
        try:
            self._changes.require_unchanged(export)
            self._responder.answer(connection, "handles", fields, self._clients.all())
        except ExchangeError as error:
            if error.code in ("absent", "changing"):
                self._responder.record_early(connection, export)
            raise

    def _switch_or_change(self, connection: ClientConnection, request: str, fields: Fields) -> bool:
        try:
            return (self._switch if request == "switch" else self._change)(connection, fields)
        except BadPacket:
            raise
        except MemtopoError as error:
            self._changes.record_failure(request, process_name(connection.peer.pid), error)
            raise

    def _switch(self, connection: ClientConnection, fields: Fields) -> bool:
        fields.allow_only("request", "state", "force", "wait", "check")
        state = fields.text("state", LONGEST_NAME)
        terms = _change_terms(fields)
        self._require_changeable(connection, "switch")
        planned = self._responder.planned_switch(state)
        request = ChangeRequest(connection, "switch", planned, planned.touched, {"state": state}, *terms)
        return self._changes.begin(request)

    def _change(self, connection: ClientConnection, fields: Fields) -> bool:
        fields.allow_only("request", "source", "generation", "force", "wait", "check")
        generation = fields.number("generation", 1) if fields.has("generation") else None
        terms = _change_terms(fields)
        self._require_changeable(connection, "change")
        source = connection.receive_source(fields.object("source"))
        if source is None:
            connection.send({"ok": {"received": connection.received_source}})
            return True
        planned = self._responder.planned_change(source, generation)
        return self._changes.begin(ChangeRequest(connection, "change", planned, planned.touched, {}, *terms))

    def _await_commit(self, connection: ClientConnection, fields: Fields, *, writes: bool) -> bool:
        if self._shutdown.why:
            raise releasing()
        if writes:
            _require_owner(connection, "write")
        else:
            self._clients.check_importer(connection)
        self._commits.begin(connection, fields, writes=writes)
        return False

    def _require_changeable(self, connection: ClientConnection, action: str) -> None:
        """Raise `ExchangeError` for a client of another user, during a release, and during another change."""
        _require_owner(connection, action)
        if self._shutdown.why:
            raise releasing()
        self._changes.require_none()

    def _release(self, connection: ClientConnection, fields: Fields) -> None:
        fields.allow_only("request", "force", "grace")
        _require_owner(connection, "release")
        if connection.gone():  # it timed out while this process was stopped: it has reported that nothing was released
            return
        force, grace = fields.flag("force"), fields.seconds("grace", LONGEST_GRACE)
        bound = [each for each in self._clients.bound if each is not connection]
        if bound and not force:
            raise still_bound(bound)
        if self._responder.nodes and not force:
            self._responder.nodes.require_unbound()
        connection.awaits_release = True
        self._responder.events.add("release requested", {"by": process_name(connection.peer.pid)})
        self._end(grace)


def _require_owner(connection: ClientConnection, action: str) -> None:
    """Raise `ExchangeError` for a client of another user, who may only import."""
    if connection.peer.uid not in (0, os.geteuid()):
        raise ExchangeError("owner", f"only uid {os.geteuid()}, which holds it, may {action} the layout")


def releasing() -> ExchangeError:
    """Return the error for a request that comes too late."""
    return ExchangeError("releasing", "the layout is being released")


def _change_terms(fields: Fields) -> tuple[bool, bool, float]:
    """Return `force`, whether the check is full, and the seconds to wait for importers."""
    full = fields.has("check") and fields.word("check", "fast", "full") == "full"
    wait = fields.seconds("wait", LONGEST_WAIT) if fields.has("wait") else 0.0
    return fields.flag("force"), full, wait
