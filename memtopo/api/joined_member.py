"""One process of a layout that all its processes have joined: it takes part in the changes of all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from memtopo.api.errors import NotApplied, NotChanged, NotSwitched
from memtopo.api.live import Live
from memtopo.api.session import Session, descriptors
from memtopo.api.specs import Params, SpecLike, load
from memtopo.common.errors import MemtopoError
from memtopo.common.signals import deferred
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.language import SpecText
from memtopo.plans.report import Check, Checks, PlanSummary, Report
from memtopo.run.layout_plans import WHOLE, LayoutPlans
from memtopo.run.processes.member import Member, ProcessLost
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.status import Notice

_INTERVAL = 0.05

OnLost = Literal["raise"] | Callable[[str], object]
"""What follows from the end of another process: `ProcessLost`, or a call with the reason."""


class JoinedSession(Session):
    """Part of a layout that this process has, whose changes are made with all other processes."""

    def __init__(self, member: Member, target: Target, where: Endpoint, signals: deferred) -> None:
        self.machine = target.line
        self._member, self._where, self._signals = member, where, signals
        self.run = member.run
        self.conductor = _Following(member)  # type: ignore[assignment]
        self._opened = member.driver
        self.layout = member.run.execution.layout
        self.driver = member.run.execution.driver
        self._descriptors = set()

    @property
    def geometry(self) -> Geometry:
        return self.run.request.geometry

    @property
    def plan(self) -> PlanSummary:
        return self.run.request.summary()

    def begin(self, *, verify: bool) -> None:
        """Build this part with all others, as the coordinator commands; it is verified in any case."""
        del verify
        member = self._member
        lost = None
        try:
            with self._signals, self.run.recording_failure():
                try:
                    member.build()
                except ProcessLost as error:
                    lost = error
            self._descriptors = descriptors()
        except BaseException:
            self.end()
            raise
        if lost or self.run.failure or self.run.stopped:
            report = self.end()
            if report.exit_code:
                raise NotApplied(report)
            raise lost or NotApplied(report)

    @property
    def over(self) -> str | None:
        """Reason for which the layout can only be taken down; None as long as it is complete."""
        return self._member.over

    def poll(self) -> bool:
        """Take part in the changes that others have requested. Return whether there were any."""
        return self._member.poll()

    def wait(self, seconds: float) -> None:
        """Wait until another process requests something, for at most so many seconds."""
        self._member.wait(seconds)

    def switch(self, state: str) -> Checks:
        return self._requested(lambda client: client.switch(state).checks, NotSwitched)

    def change(self, spec: SpecLike, check: Check, params: Params | None = None) -> Checks:
        text = SpecText.of(load(spec, params=params).document)
        source = json.dumps({"spec": text.text, "name": text.name, "settings": text.settings})
        return self._requested(lambda client: client.change(source, full=check == "full").checks, NotChanged)

    def _requested(self, request: Callable[[Client], Checks], refused: type[NotSwitched | NotChanged]) -> Checks:
        """Send a request to the coordinator from a thread, and take part in what it commands meanwhile."""
        if self._member.over is not None:
            raise refused(f"the layout can only be taken down: {self._member.over}")
        found: list[Checks | BaseException] = []

        def ask() -> None:
            try:
                with connect(self._where) as client:
                    found.append(request(client))
            except BaseException as error:  # noqa: BLE001 raised in the thread that waits
                found.append(error)

        asking = threading.Thread(target=ask, name="memtopo-request", daemon=True)
        asking.start()
        while asking.is_alive():
            self._member.poll()
            self._member.wait(_INTERVAL)
        self._member.poll()
        if isinstance(found[0], MemtopoError):
            raise refused(found[0].message, hint=found[0].hint) from found[0]
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def _end(self) -> Report:
        used = len(descriptors() - self._descriptors) if self._descriptors else 0
        try:
            return self._member.leave(used)
        finally:
            if simulator := self.simulator:
                simulator.close()


class _Following:
    """State of a layout that a coordinator changes, as its process knows it."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def state(self) -> str:
        return self._member.run.variant[0]

    @property
    def whole(self) -> bool:
        return self._member.run.variant == WHOLE

    @property
    def plans(self) -> LayoutPlans:
        return self._member.run.plans

    @property
    def generation(self) -> int:
        return self._member.generation

    def recheck(self) -> Checks:
        return self._member.run.recheck()


class JoinedLayout(Live):
    """One process's part of a layout, with all that the layouts of `applied` have.

    The other processes, and other programs by its name, may request a switch, a change or a check: this process takes
    part in `poll`, within `idle`, or in a request of its own. Every method raises `ProcessLost` once another process
    has ended, unless `on_lost` is a function, which is called with the reason instead; the memory stays until the end
    of the `with`.
    """

    def __init__(self, session: JoinedSession, process: str, on_lost: OnLost) -> None:
        super().__init__(session)
        self._joined, self._on_lost = session, on_lost
        self.process = process
        """Label of this process in the layout."""

    @property
    def over(self) -> str | None:
        """Reason for which the layout can only be taken down; None as long as it is complete."""
        return self._joined.over

    def poll(self, timeout: float = 0.0) -> Notice | None:
        """Take part in what others have requested, and wait for that for up to `timeout` seconds.

        Nothing may use the layout's memory meanwhile; the work of the GPUs is waited for.
        """
        self._require_open()
        until = time.monotonic() + timeout
        while not self._take_part() and (left := until - time.monotonic()) > 0:
            self._joined.wait(left)
        return super().poll() if self._imports else None

    def _take_part(self) -> bool:
        """Take part in what has been requested. Return whether the layout was changed, or is lost."""
        before = self.generation
        with self._elastic.lock, deferred(), self._following():
            self._joined.poll()
        return self.over is not None or self.generation != before

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

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Follow changes that the code inside takes part in."""
        before = self.over
        try:
            with self._changing_memory():
                yield
        except ProcessLost as error:
            if self._on_lost == "raise":
                raise
            if before is None:
                self._on_lost(error.message)
