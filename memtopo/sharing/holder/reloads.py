"""Reloads of a held layout: changes to its spec file, read again when a signal requests it."""

from __future__ import annotations

from collections.abc import Callable

from memtopo.common.errors import MemtopoError
from memtopo.sharing.holder.changes import ChangeRequest, Changes
from memtopo.sharing.holder.responses import Responder
from memtopo.sharing.holder.systemd import Notifier

WAIT = 5.0
"""Seconds that importers have to let go of memory that goes by a reload."""

Reload = Callable[[], Callable[[], str] | None]
"""Function that reads the spec again, if a signal has requested it since the last call, or None.

It returns a source, or raises `MemtopoError`.
"""


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
            self._change(read())
        except MemtopoError as error:
            self._changes.record_failure("reload", "SIGHUP", error)

    def end(self) -> None:
        """Notify systemd once the change is made or refused."""
        if self._under_way and self._changes.remaining() is None:
            self._under_way = False
            self._systemd.ready(self._responder.holding)

    def _change(self, source: str) -> None:
        self._changes.require_none()
        planned = self._responder.planned_change(source, None)
        self._changes.begin(
            ChangeRequest(None, "reload", planned, planned.touched, {}, force=False, full=False, wait=WAIT)
        )
