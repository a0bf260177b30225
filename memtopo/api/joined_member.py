"""One process of a layout that all its processes have joined: it takes part in the changes of all."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from memtopo.api.errors import NotApplied, NotChanged, NotSwitched
from memtopo.api.live import Live, Refused
from memtopo.api.session import Session
from memtopo.api.specs import Params, SpecLike, load
from memtopo.common.arguments import checked
from memtopo.common.errors import MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.signals import deferred
from memtopo.drivers.target import Target
from memtopo.language import SpecText
from memtopo.language.names import AWAKE
from memtopo.plans.report import Check, Checks, Report
from memtopo.run.processes.member import Member, ProcessLost
from memtopo.session.composition import HoldResult
from memtopo.sharing.client import SAVE_TIMEOUT, Client, connect
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.status import Notice
from memtopo.storage.saved import FolderRefused, Saved

T = TypeVar("T")

_INTERVAL = 0.05
_ANSWER = 5.0
"""Seconds that the coordinator has for its answer, once all processes take part or are late."""

OnLost = Literal["raise"] | Callable[[str], object]
"""What follows from the end of another process: `ProcessLost`, or a call with the reason."""


class JoinedSession(Session):
    """Part of a layout that this process has, whose changes are made with all other processes."""

    def __init__(self, member: Member, target: Target, where: Endpoint, signals: deferred) -> None:
        super().__init__(target.line, member.run, member.driver, signals)
        self.member, self._where = member, where
        self._lost: ProcessLost | None = None
        self.requested: tuple[str, str] | None = None
        """State, and source of the spec, of the change that this process has requested; None if it requests none."""

    def begin(self) -> None:
        super().begin()
        if self._lost or self.run.stopped:
            report = self.end()
            if report.exit_code or self._lost is None:
                raise NotApplied(report)
            raise self._lost

    def _build(self) -> None:
        """Build this part with all others, as the coordinator commands."""
        try:
            self.member.build()
        except ProcessLost as error:
            self._lost = error

    @property
    def generation(self) -> int:
        return self.member.generation

    def switch(self, state: str) -> Checks:
        return self._requested((state, ""), lambda client: client.switch(state).checks, NotSwitched)

    def change(self, spec: SpecLike, check: Check, params: Params | None = None) -> Checks:
        text = SpecText.of(load(spec, params=params).document)
        source = json.dumps({"spec": text.text, "name": text.name, "settings": text.settings})
        full = check == "full"
        return self._requested((AWAKE, source), lambda client: client.change(source, full=full).checks, NotChanged)

    def save(self, folder: str) -> Saved:
        path = os.path.abspath(folder)  # noqa: PTH100 a link at its end is refused
        return self._answered(lambda client: client.save(path), FolderRefused, SAVE_TIMEOUT)

    def _requested(self, goal: tuple[str, str], request: Callable[[Client], Checks], refused: Refused) -> Checks:
        self.requested = goal
        try:
            return self._answered(request, refused)
        finally:
            self.requested = None

    def _answered(self, request: Callable[[Client], T], refused: Refused, patience: float = 0.0) -> T:
        """Send a request to the coordinator from a thread, and take part in what it commands meanwhile.

        It may be silent for as long as processes have to take part, and for `patience` if that is longer.
        """
        self.member.require_complete()
        if self.member.over is not None:
            raise refused(f"the layout can only be taken down: {self.member.over}")
        found: list[T | BaseException] = []
        limit = max(self.member.timeout + _ANSWER, patience)

        def ask() -> None:
            try:
                with connect(self._where) as client:
                    found.append(request(client))
            except BaseException as error:  # noqa: BLE001 raised in the thread that waits
                found.append(error)

        asking = threading.Thread(target=ask, name="memtopo-request", daemon=True)
        asking.start()
        silent = RunningClock()
        while asking.is_alive():
            self.member.poll()
            if self.member.wait(_INTERVAL):
                silent = RunningClock()
            if silent.time() > limit:
                message = f"the coordinator of the layout gave no answer within {limit:g} s"
                raise refused(message, hint="if it does so later, this process is asked to take part")
        self.member.poll()
        if isinstance(found[0], MemtopoError):
            raise refused(found[0].message, hint=found[0].hint) from None
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def _take_down(self, held: HoldResult) -> Report:
        return self.member.leave(held)


class JoinedLayout(Live):
    """One process's part of a layout, with all that the layouts of `applied` have.

    The other processes, and other programs by its name, may request a switch, a change or a check: this process takes
    part in `poll`, within `idle`, or in a request of its own. These raise `ProcessLost` once another process has ended,
    unless `on_lost` is a function, which is called with the reason instead, once: then requests raise `NotSwitched` and
    `NotChanged`. The memory stays until the end of the `with`, except what an interrupted change has released.
    """

    def __init__(self, session: Session, process: str, on_lost: OnLost) -> None:
        super().__init__(session)
        self.process = process
        """Label of this process in the layout."""
        self._on_lost, self._told = on_lost, False

    @property
    def over(self) -> str | None:
        """Reason for which the layout can only be taken down; None as long as it is complete."""
        raise NotImplementedError

    @checked()
    def poll(self, timeout: float = 0.0) -> Notice | None:
        """Take part in what others have requested, and wait for that for up to `timeout` seconds.

        Nothing may use the layout's memory meanwhile; the work of the GPUs is waited for. Returns the notice `changed`
        of a change, also of one that was refused. `on_change` is called with that, and before with the notice
        `changing`, which names the state that comes, and with the seconds that this process has to take part.

        A `switch` or `change` of this process calls it, too, for what others have requested before, but not for itself.
        """
        return super().poll(timeout)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Take part in what others request for the duration of a `with`, in which nothing uses the layout's memory."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def follow() -> None:
            try:
                while not stop.is_set():
                    self.poll(_INTERVAL)
            except BaseException as error:  # noqa: BLE001 raised at the end of the with
                failed.append(error)

        thread = threading.Thread(target=follow, name="memtopo-idle", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failed:
            raise failed[0]

    def _loss(self) -> ProcessLost:
        """Return the error for the end of another process."""
        raise NotImplementedError

    def _note_lost(self) -> None:
        """Raise `ProcessLost`, or call `on_lost` once."""
        if self._on_lost == "raise":
            raise self._loss() from None
        if not self._told:
            self._told = True
            self._on_lost(str(self.over))


class LayoutOfMembers(JoinedLayout):
    """Part of a layout that a coordinator conducts, with all its processes."""

    def __init__(self, session: JoinedSession, process: str, on_lost: OnLost) -> None:
        super().__init__(session, process, on_lost)
        self._joined, self._member = session, session.member
        self._member.announce = self._announce
        self._announced = False

    @property
    def over(self) -> str | None:
        return self._member.over

    def _loss(self) -> ProcessLost:
        return self._member.loss()

    @checked()
    def poll(self, timeout: float = 0.0) -> Notice | None:
        self._require_open()
        until = time.monotonic() + timeout
        while not (notice := self._take_part()) and self.over is None and (left := until - time.monotonic()) > 0:
            self._member.wait(left)
        return notice

    def _take_part(self) -> Notice | None:
        """Take part in what has been requested. Return a notice of the change, if there was one."""
        try:
            with self._elastic.lock, deferred(), self._changing_memory():
                self._member.poll()
        except ProcessLost:
            self._note_lost()
        return self._note_changed()

    @contextmanager
    def _requesting(self, refused: Refused) -> Iterator[None]:
        """Tell `on_change` what others had requested before the request of this process, also if that is refused.

        Raises `refused` after the end of another process that `on_lost` is called with.
        """
        try:
            yield
        except ProcessLost as error:
            self._note_lost()
            self._note_changed()
            raise refused(error.message, hint=error.hint) from None
        except refused:
            self._note_changed()
            raise
        self._note_changed()

    def _announce(self, state: str, source: str) -> None:
        """Tell `on_change` what another process has requested, before this one takes part in it."""
        if (state, source) == self._joined.requested:
            return
        if not source:
            self._elastic.prepare()
        if self.on_change:
            self.on_change(Notice("changing", self._member.timeout, self.generation, state=state))
        self._announced = True

    def _note_changed(self) -> Notice | None:
        """Tell `on_change` that what was announced is over, and return that notice; None if nothing was."""
        if not self._announced:
            return None
        self._announced = False
        notice = Notice("changed", generation=self.generation, state=self.state)
        if self.on_change:
            self.on_change(notice)
        return notice
