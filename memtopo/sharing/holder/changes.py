"""Changes of a held layout: importers of memory that is released are asked to let go of it before a change is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, ExchangeError, InternalError, MemtopoError, internal_errors
from memtopo.common.processes import RunningClock
from memtopo.common.text import first_of, process_name
from memtopo.common.units import rounded
from memtopo.plans.report import Checks
from memtopo.sharing import messages
from memtopo.sharing.holder.clients import ClientConnection, Clients
from memtopo.sharing.holder.responses import Responder
from memtopo.sharing.holder.state import LISTED, ProgressNotices, Reload, Severity
from memtopo.sharing.holder.systemd import Notifier
from memtopo.sharing.messages import TransitionRequest
from memtopo.sharing.offers import ChangeFailed, LayoutChange
from memtopo.sharing.status import MemoryChange

_LISTED_EXPORTS = 2


class ChangeRequest(Struct, frozen=True):
    """A change that a client requested, or a signal, which has no connection; `action` is its name in the log.

    Importers of memory that is released have `wait` seconds to let go; with `force` the change is made even if they do
    not. A `full` check reads bytes. `answer` has the known fields of the answer.
    """

    connection: ClientConnection | None
    action: str
    planned: LayoutChange
    answer: Mapping[str, Any]
    force: bool
    full: bool
    wait: float

    @property
    def touched(self) -> frozenset[str]:
        """Names of the exports whose objects go."""
        return self.planned.touched

    @property
    def by(self) -> str:
        """Name of the requester."""
        return process_name(self.connection.peer.pid) if self.connection else "SIGHUP"


class Changes:
    """Changes of one layout, one at a time. `take_down` is called after a change that has left it broken.

    The client that requested one gets notices of its `progress`.
    """

    def __init__(
        self,
        responder: Responder,
        clients: Clients,
        take_down: Callable[[], None],
        progress: ProgressNotices,
        clock: RunningClock,
    ) -> None:
        self._responder, self._clients, self._take_down = responder, clients, take_down
        self.progress = progress
        self._awaited: ChangeRequest | None = None
        self._clock = clock
        self._until = 0.0

    def request(self, connection: ClientConnection, request: TransitionRequest) -> bool:
        """Make the change or switch of a request. Return false if it is answered later. Raises `MemtopoError`."""
        try:
            self.require_changeable(connection, request.request)
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
            return self.begin(ChangeRequest(connection, request.request, planned, about, *terms))
        except BadPacket:
            raise
        except MemtopoError as error:
            self.record_failure(request.request, process_name(connection.peer.pid), error)
            raise

    def require_changeable(self, connection: ClientConnection, action: str) -> None:
        """Raise `ExchangeError` for a client of another user, during a release, and during another change."""
        require_owner(connection, action)
        self._responder.require_complete()
        if self._responder.releasing:
            raise releasing()
        self.require_none()

    def begin(self, request: ChangeRequest) -> bool:
        """Make a change, or ask importers to let go first. Return false if it is answered later.

        Raises `ExchangeError` for a refusal, `OSError` if the connection of the request broke.
        """
        pinning = self._pinning(request)
        self._responder.events.add(f"{request.action} requested", {"by": request.by, "importers": len(pinning)})
        if not pinning or not request.wait:
            with internal_errors():
                answer = self._make(request)
            if request.connection:
                request.connection.send(answer)
            return True
        self._awaited, self._until = request, self._clock.time() + request.wait
        if request.connection:
            self._clients.pause(request.connection)
        coming = request.answer.get("state", self._responder.layout_state)
        for each in pinning:
            names = [taken.export for taken in each.taken(request.touched)]
            each.asked.update(names)
            self._notify(each, {"notice": "changing", "deadline": request.wait, "state": coming}, names)
        return False

    def advance(self) -> None:
        """Make the awaited change if nothing stands in its way any more, or refuse it at its deadline."""
        request = self._awaited
        if request is None:
            return
        if request.connection and not self._clients.waits(request.connection):
            self._awaited = None
            request.planned.give_up()
            self._notify_changed(request)
        elif not self._pinning(request) or self._clock.time() >= self._until:
            self._awaited = None
            try:
                with internal_errors():
                    answer = self._make(request, notified=True)
            except MemtopoError as error:
                self._refuse(request, error)
            else:
                self._answer(request, answer)

    def renew(self, exports: frozenset[str]) -> frozenset[str]:
        """Create the memory of exports anew that no importer has handles of. Raises `MemtopoError`.

        Return those of which no bytes are left: a state may have offloaded some.
        """
        before = self._responder.generation
        try:
            with internal_errors():
                planned = self._responder.require_changeable().renewal(exports)
                checks = planned.make(full=False)
            self._responder.counters.changes += 1
            self._responder.counters.add_check(checks)
        except ChangeFailed as failed:
            if failed.broken:
                self._take_down()
            raise ExchangeError("broken" if failed.broken else "failed", failed.message, hint=failed.hint) from failed
        finally:
            if self._responder.generation != before:
                self._responder.after_change(exports, exports)
                state = self._awaited.answer.get("state") if self._awaited else None
                if self._awaited and state:  # releases other memory now; a change to a spec releases the same
                    self._awaited = replace(self._awaited, planned=self._responder.planned_switch(state))
        return planned.lost

    def notify_committed(self, exports: Collection[str]) -> None:
        """Notify importers that have let go of exports, whose content is committed now."""
        message = {"notice": "changed", "state": self._responder.layout_state}
        for each in tuple(self._clients.all()):
            if names := [name for name in each.let_go_of if name in exports]:
                self._notify(each, message, names)

    def notify_late(self, connection: ClientConnection, exports: Collection[str]) -> None:
        """Notify a client that has let go of exports for a change which is over.

        Their memory is as it was before, or was left to the client by a forced change, and others came after it.
        """
        awaited = self._awaited.touched if self._awaited else frozenset()
        now = self._responder.generation
        late = connection.asked.union(each for each in exports if connection.kept.pop(each, now) < now)
        late = late.intersection(exports, connection.let_go_of) - awaited
        connection.asked.difference_update(exports)
        if late:
            self._notify(connection, {"notice": "changed", "state": self._responder.layout_state}, sorted(late))

    def refuse(self, error: ExchangeError) -> None:
        """Refuse the awaited change, if there is one."""
        if request := self._awaited:
            self._awaited = None
            request.planned.give_up()
            self._refuse(request, error)

    def require_none(self) -> None:
        """Raise `ExchangeError` if a change is awaited."""
        if self._awaited:
            message = f"{self._requester()} is changing the layout, and waits for importers to release memory"
            raise ExchangeError("changing", message, hint="try again in a moment")

    def require_unchanged(self, export: str) -> None:
        """Raise `ExchangeError` if the awaited change concerns an export."""
        if self._awaited and export in self._awaited.touched:
            message = f"{self._requester()} is changing export {export!r}"
            raise ExchangeError("changing", message, hint="wait for the notice 'changed'")

    def remaining(self) -> float | None:
        """Return the seconds until the deadline of the awaited change; None if there is none."""
        return max(self._until - self._clock.time(), 0.0) if self._awaited else None

    def record_failure(self, action: str, by: str, error: MemtopoError) -> None:
        """Record a change that was refused, rolled back, or that broke the layout."""
        code = error.code if isinstance(error, ExchangeError) else ""
        words = {"failed": "rolled back", "broken": "has broken the layout", "internal": "met an internal error"}
        text = words.get(code, "refused")
        severity: Severity = "error" if code in ("broken", "internal") else "warning"
        self._responder.events.add(f"{action} {text}", {"by": by, "reason": error.message}, severity)

    def _requester(self) -> str:
        assert self._awaited
        return self._awaited.by

    def _pinning(self, request: ChangeRequest) -> list[ClientConnection]:
        return [each for each in self._clients.all() if each.taken(request.touched)]

    def _make(self, request: ChangeRequest, *, notified: bool = False) -> dict[str, Any]:
        """Make a change, and return its answer. Raises `MemtopoError` after a refusal or a failure.

        Importers that were `notified` before receive a notice that it is over.
        """
        pinning = self._pinning(request)
        users = [each for each in pinning if each.taken(request.planned.reused)]
        if users or (pinning and not request.force):
            request.planned.give_up()
            if notified:
                self._notify_changed(request)
            raise _still_imported(users if users and request.force else pinning, request)
        kept = messages.encode_importers([each.importer_of(request.touched) for each in pinning])
        before, lost, made = self._responder.generation, request.planned.lost, False
        memory, began = self._responder.memory(), self._clock.now()
        try:
            names = frozenset(taken.export for each in pinning for taken in each.taken(request.touched))
            with self.progress.to(*([request.connection] if request.connection else [])):
                checks = self._made(request, names)
            made, ended = True, self._clock.now()
            self._responder.counters.changes += self._responder.generation != before
            self._responder.counters.add_check(checks)
        except ChangeFailed as failed:
            self._responder.counters.rolled_back += not failed.broken
            if failed.broken:
                self._take_down()
            raise ExchangeError("broken" if failed.broken else "failed", failed.message, hint=failed.hint) from failed
        finally:
            replaced = request.touched if self._responder.generation != before else frozenset()
            differing = self._responder.after_change(replaced, lost if made or replaced else ())
            if made:
                self._responder.contents.renewed(lost - request.planned.reused)
            elif replaced:  # some of the memory may be what importers keep since the change was forced
                self._responder.contents.discard(lost)
            self._notify_changed(request, replaced | differing)
        self._record_made(request, checks)
        now = {"generation": self._responder.generation, "checks": messages.encode_checks(checks)}
        now |= {"seconds": ended - began, "memory": [*map(to_builtins, differences(memory, self._responder.memory()))]}
        answer = {"name": self._responder.name, **request.answer, **now}
        return {"ok": answer | {"kept": kept}}

    def _made(self, request: ChangeRequest, in_use: frozenset[str]) -> Checks:
        """Make a change, and return its checks. An error of memtopo itself leaves the layout held, as it is then."""
        try:
            with internal_errors():
                self._responder.lending.close_handles(request.touched)
                return request.planned.make(full=request.full, in_use=in_use)
        except InternalError as error:
            message = f"{error.message}; the layout is held on, of generation {self._responder.generation}"
            raise ExchangeError("internal", message, hint="'memtopo show' has its state") from error

    def _record_made(self, request: ChangeRequest, checks: Checks) -> None:
        """Record a change that was made, and the result of its check."""
        state = {"state": self._responder.layout_state} if self._responder.layout_state else {}
        severity: Severity = "warning" if checks.different else "info"
        counts = {"generation": self._responder.generation, "different": checks.different}
        self._responder.events.add(f"{request.action} made", {"by": request.by, **state, **counts}, severity)

    def _refuse(self, request: ChangeRequest, error: MemtopoError) -> None:
        self.record_failure(request.action, request.by, error)
        self._answer(request, messages.encode_error(error))

    def _answer(self, request: ChangeRequest, answer: Mapping[str, Any]) -> None:
        """Answer a request that waited."""
        if request.connection:
            self._clients.answer(request.connection, answer)

    def _notify_changed(self, request: ChangeRequest, exports: frozenset[str] = frozenset()) -> None:
        """Notify importers that let go of exports, and those with handles of what the change concerned.

        The notice names what they let go of, and the `exports` whose memory or offer differs now.
        """
        message = {"notice": "changed", "state": self._responder.layout_state}
        for each in tuple(self._clients.all()):
            held = [taken.export for taken in each.taken(request.touched | exports)]
            if held or each.let_go_of:
                names = dict.fromkeys([*each.let_go_of, *(name for name in held if name in exports)])
                each.asked.difference_update(names)
                kept = names.keys() & request.touched - each.let_go_of.keys()
                each.kept.update(dict.fromkeys(kept, self._responder.generation))
                self._notify(each, message, list(names))

    def _notify(self, connection: ClientConnection, message: Mapping[str, Any], names: Collection[str]) -> None:
        notice = {**message, "generation": self._responder.generation, "exports": list(names)}
        self._clients.deliver(connection, notice)


def require_owner(connection: ClientConnection, action: str) -> None:
    """Raise `ExchangeError` for a client of another user, who may only import."""
    if connection.peer.uid not in (0, os.geteuid()):
        raise ExchangeError("owner", f"only uid {os.geteuid()}, which holds it, may {action} the layout")


def releasing() -> ExchangeError:
    """Return the error for a request that comes too late."""
    return ExchangeError("releasing", "the layout is being released")


def differences(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[MemoryChange]:
    """Yield the locations at which a layout has another amount of memory than before."""
    for location in sorted({*before, *after}):
        change = MemoryChange(location, before.get(location, 0), after.get(location, 0))
        if change.before != change.after:
            yield change


def _still_imported(pinning: Sequence[ClientConnection], request: ChangeRequest) -> ExchangeError:
    """Return the refusal of a change while importers have handles of memory that is released.

    A forced one is refused if others would write memory that importers use.
    """
    exports = request.planned.reused if request.force else request.touched
    found: list[str] = []
    for each in pinning:
        taken = each.taken(exports)
        named = [f"{one.handles:,} of {one.export}, {rounded(one.bytes)}" for one in taken[:_LISTED_EXPORTS]]
        if len(taken) > _LISTED_EXPORTS:
            named.append(f"{len(taken) - _LISTED_EXPORTS:,} more exports")
        found.append(f"{process_name(each.peer.pid)} ({'; '.join(named)})")
    processes = first_of(found, LISTED)
    if request.force:
        what = ", which stays in the layout, and which others will write"
        hint = "let them detach first, or declare the new content as another export"
    else:
        what = f"{f' within {request.wait:g} s' if request.wait else ''}: the change would leave it allocated"
        hint = "let them detach first, or poll for notices; with --force, they keep the old memory"
    return ExchangeError("attached", f"{processes} did not release imported memory{what}", hint=hint)


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
