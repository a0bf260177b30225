"""Committed exports of a held layout: a writer leases and commits them, and readers wait for that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.text import process_name
from memtopo.sharing import messages
from memtopo.sharing.holder.clients import ClientConnection, Clients
from memtopo.sharing.holder.state import EventFields, HolderEvents
from memtopo.sharing.messages import CommitRequest, WaitRequest
from memtopo.sharing.offers import CommitState, Offer

_WAIT = "give the writer longer (wait=60 in Python); a writer attaches with role='writer', and commits"
_BESIDE = "readers attach without a role; for new content, add an export with 'memtopo change'"


class _Content(Struct):
    """Content of one export. `discarded` memory has bytes of an earlier content, and has to be created anew."""

    writer: ClientConnection | None = None
    committed: bool = False
    discarded: bool = False

    @property
    def state(self) -> CommitState:
        if self.committed:
            return "committed"
        return "writing" if self.writer else "empty"


class Contents:
    """Content of each export that is declared `commit: required`, by name."""

    def __init__(self) -> None:
        self._known: dict[str, _Content] = {}

    def follow(self, exports: Iterable[str], lost: Iterable[str]) -> None:
        """Have content for these exports. `lost` ones are not committed any more; a writer keeps its lease."""
        self._known = {name: self._known.get(name, _Content()) for name in exports}
        for name in self._known.keys() & set(lost):
            self._known[name].committed = False

    def restore(self, names: Iterable[str]) -> None:
        """Have exports committed whose content came back."""
        for name in self._known.keys() & set(names):
            self._known[name].committed = True

    @property
    def committed(self) -> Sequence[str]:
        """Names of the exports that are committed."""
        return [name for name, each in self._known.items() if each.committed]

    def described(self, offer: Offer) -> Offer:
        """Offer with the present state of its content, and its writer."""
        content = self._known.get(offer.name)
        if content is None:
            return offer
        return replace(offer, commit=content.state, writer=content.writer.peer.pid if content.writer else None)

    def content(self, name: str) -> _Content:
        """Content of an export. Raises `ExchangeError` if it is not committed by a writer."""
        if name not in self._known:
            raise ExchangeError("unknown", f"there is no export {name!r} that is declared 'commit: required'")
        return self._known[name]

    def require_readable(self, name: str, connection: ClientConnection) -> None:
        """Raise `ExchangeError` for handles of an export that is not committed, unless they are for its writer."""
        if name in self._known and self._known[name].writer is not connection and not self._known[name].committed:
            raise ExchangeError("uncommitted", self.uncommitted(name), hint=_WAIT)

    def uncommitted(self, name: str) -> str:
        """Return why an export cannot be read yet."""
        writer = self._known[name].writer
        return f"export {name!r} is not committed: " + (
            f"{process_name(writer.peer.pid)} is writing it" if writer else "no process is writing it"
        )

    def leave(self, present: Collection[ClientConnection]) -> Mapping[ClientConnection, list[str]]:
        """End the leases of writers whose connection has ended; return what they were writing."""
        left: dict[ClientConnection, list[str]] = {}
        for name, each in self._known.items():
            if each.writer and each.writer not in present:
                left.setdefault(each.writer, []).append(name)
                each.writer, each.discarded = None, True
        return left

    def discard(self, names: Iterable[str]) -> None:
        """Have the memory of some exports created anew before the next writer, unless they have a writer."""
        for name in self._known.keys() & set(names):
            self._known[name].discarded = self._known[name].writer is None

    def renewed(self, names: Iterable[str]) -> None:
        """Have no bytes of earlier writers left of some exports: their memory is anew, or gone in the state."""
        for name in self._known.keys() & set(names):
            self._known[name].discarded = False

    def discarded(self) -> frozenset[str]:
        """Names of the exports whose memory has to be created anew."""
        return frozenset(name for name, each in self._known.items() if each.discarded)


class Served(Protocol):
    """Layout that is served: the content of its exports, its events, and its generation."""

    contents: Contents
    events: HolderEvents

    @property
    def generation(self) -> int: ...

    def generation_of(self, export: str) -> int:
        """Generation in which the objects of an export were made."""


class _Waiting(Struct, frozen=True):
    """Request of a client that waits for the lease to write exports, or for their commit."""

    connection: ClientConnection
    writes: bool
    exports: tuple[str, ...]
    seconds: float
    until: float


class Commits:
    """Requests `write`, `await` and `commit` of one layout. No method waits.

    `renew` creates the memory of exports anew, returns those of which no bytes are left, and raises `MemtopoError` if
    it cannot. `notify` notifies importers of exports that can be imported.
    """

    def __init__(
        self,
        responder: Served,
        clients: Clients,
        renew: Callable[[frozenset[str]], frozenset[str]],
        notify: Callable[[Collection[str]], None],
        clock: RunningClock,
    ) -> None:
        self._responder, self._clients, self._renew, self._notify = responder, clients, renew, notify
        self._contents = responder.contents
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._in_vain = 0
        """Generation of the layout in which it keeps some of what is to be created anew; 0 for none."""

    def begin(self, connection: ClientConnection, request: WaitRequest) -> None:
        """Accept a request that `advance` answers. Raises `ExchangeError` for an export without commit."""
        exports = tuple(dict.fromkeys(request.exports))
        for name in exports:
            self._contents.content(name)
        connection.awaits_commit = True
        self._clients.pause(connection)
        until = self._clock.time() + request.wait
        self._waiting.append(_Waiting(connection, request.request == "write", exports, request.wait, until))

    def commit(self, connection: ClientConnection, request: CommitRequest) -> None:
        """Commit exports that the client writes: all of them, or none. Raises `ExchangeError`, `OSError`."""
        exports = {each.name: each.generation for each in request.exports}
        for name, generation in exports.items():
            if self._contents.content(name).writer is not connection:
                message = f"{process_name(connection.peer.pid)} is not the writer of export {name!r}"
                raise ExchangeError("lease", message, hint="request 'write' first")
            if generation != (now := self._responder.generation_of(name)):
                message = f"export {name!r} has generation {now}, but generation {generation} was written"
                raise ExchangeError("stale", message, hint="import it again, and write it again")
        for name in exports:
            content = self._contents.content(name)
            content.writer, content.committed = None, True
            connection.writes.discard(name)
        names = tuple(exports)
        self._record("committed", connection, names)
        connection.send(self._granted(names))
        self._notify(names)

    def advance(self) -> None:
        """Create discarded memory anew, and answer the requests that need not wait any more."""
        gone = self._contents.leave(self._clients.all())
        for writer, names in gone.items():
            self._record("writer ended without a commit", writer, names)
        discarded = self._contents.discarded()
        wanted = any(each.writes and not discarded.isdisjoint(each.exports) for each in self._waiting)
        if gone or (wanted and self._in_vain != self._responder.generation):
            self._create_anew(discarded)
        now = self._clock.time()
        for each in tuple(self._waiting):
            if not self._clients.waits(each.connection):
                self._waiting.remove(each)
            elif answer := self._outcome(each, now):
                self._answer(each, answer)

    def refuse(self, error: ExchangeError) -> None:
        """Refuse all requests that wait."""
        for each in tuple(self._waiting):
            self._answer(each, messages.encode_error(error))

    def remaining(self) -> float | None:
        """Return the seconds until the first deadline of a request that waits; None if there is none."""
        return max(min(each.until for each in self._waiting) - self._clock.time(), 0.0) if self._waiting else None

    def _create_anew(self, names: frozenset[str]) -> None:
        """Create discarded memory anew; if that fails, it is tried again for the next writer."""
        try:
            self._contents.renewed(done := self._renew(names))
            self._in_vain = self._responder.generation if names - done else 0
        except MemtopoError as error:
            reason: EventFields = {"exports": len(names), "export": min(names), "reason": error.message}
            self._responder.events.add("memory not created for a writer", reason, "error")
            self._contents.discard(names)
            for each in tuple(self._waiting):
                if each.writes and not names.isdisjoint(each.exports):
                    self._answer(each, messages.encode_error(error))

    def _outcome(self, each: _Waiting, now: float) -> dict[str, Any] | None:
        """Return the answer to a request; None if it waits on."""
        try:
            blocked = self._blocked_writer(each) if each.writes else self._blocked_reader(each)
        except ExchangeError as error:
            return messages.encode_error(error)
        if blocked is not None:
            return messages.encode_error(blocked) if now >= each.until else None
        if each.writes:
            for name in each.exports:
                self._contents.content(name).writer = each.connection
            each.connection.writes.update(each.exports)
            self._record("writer attached", each.connection, each.exports)
        return self._granted(each.exports)

    def _granted(self, names: Sequence[str]) -> dict[str, Any]:
        return {"ok": {"generation": self._responder.generation, "exports": list(names)}}

    def _blocked_writer(self, each: _Waiting) -> ExchangeError | None:
        """Return why exports cannot be leased yet. Raises `ExchangeError` if they never can."""
        blocked = None
        for name in each.exports:
            content = self._contents.content(name)
            if content.committed:
                raise ExchangeError("committed", f"export {name!r} is committed", hint=_BESIDE)
            if content.discarded:
                message = (
                    f"the state of the layout keeps bytes that a writer of export {name!r} has abandoned{_waited(each)}"
                )
                blocked = ExchangeError("absent", message, hint="switch the layout to awake first")
            if content.writer and content.writer is not each.connection:
                message = f"{process_name(content.writer.peer.pid)} is writing export {name!r}{_waited(each)}"
                blocked = ExchangeError("writing", message, hint="wait until it commits, or ends")
        return blocked

    def _blocked_reader(self, each: _Waiting) -> ExchangeError | None:
        """Return why exports cannot be read yet. Raises `ExchangeError` if one does not exist any more."""
        for name in each.exports:
            if not self._contents.content(name).committed:
                message = self._contents.uncommitted(name) + _waited(each)
                return ExchangeError("uncommitted", message, hint=_WAIT)
        return None

    def _record(self, text: str, connection: ClientConnection, exports: Sequence[str]) -> None:
        """Record an event of a writer and its exports, the first of which is named."""
        fields: EventFields = {"exports": len(exports), "export": exports[0], "generation": self._responder.generation}
        self._responder.events.add_of_client(text, {**connection.identity, **fields})

    def _answer(self, each: _Waiting, answer: dict[str, Any]) -> None:
        self._waiting.remove(each)
        each.connection.awaits_commit = False
        self._clients.answer(each.connection, answer)


def _waited(each: _Waiting) -> str:
    return f" (after {each.seconds:.3g} s)" if each.seconds else ""
