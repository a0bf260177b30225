"""`memtopo.join`: a context manager in which this process is one of the processes of a layout."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal, Self

from memtopo.api.errors import NotApplied, NotChanged, NotJoined, NotSwitched, Unsuitable
from memtopo.api.live import Live, LiveContext
from memtopo.api.session import Session, descriptors, uuids
from memtopo.api.specs import MachineLike, Params, SpecLike, load, resolved
from memtopo.common.errors import MemtopoError
from memtopo.common.signals import deferred
from memtopo.common.units import parse_duration
from memtopo.common.version import __version__
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.language import Document, SpecText
from memtopo.machine import dump
from memtopo.plans.report import Check, Checks, PlanSummary, Report
from memtopo.run.layout_plans import WHOLE, LayoutPlans
from memtopo.run.messages import Join
from memtopo.run.processes.member import JoinRefused, Member, ProcessLost, coordinated, joining_endpoint
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import Endpoint, endpoint
from memtopo.sharing.status import Notice


class Rank(str):
    """Label of a counted process, `rank.3`, as a launcher numbered this one of `world` processes."""

    __slots__ = ("world",)
    world: int

    def __new__(cls, name: str, index: int, world: int) -> Self:
        found = super().__new__(cls, f"{name}.{index}")
        found.world = world
        return found


_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables for the number of a process and of all processes: torchrun, Open MPI, Slurm, MPICH."""


def rank(name: str = "rank") -> Rank:
    """Return the process of a counted entry `name` that this one is by its launcher's numbers.

    They are those of torchrun, Open MPI, Slurm or MPICH. Raises `Unsuitable` if no launcher has set any.
    """
    for index, world in _LAUNCHERS:
        if index in os.environ and world in os.environ:
            return Rank(name, int(os.environ[index]), int(os.environ[world]))
    raise Unsuitable("no launcher has numbered this process", hint="name it: process='rank.0'")


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


class Joined(LiveContext[JoinedLayout]):
    """Part of a layout that exists for the duration of a `with`."""


@dataclass(frozen=True, slots=True)
class _Options:
    """Arguments of `join`; `timeout` in seconds."""

    spec: SpecLike
    process: str
    machine: MachineLike
    timeout: float
    params: Params | None
    check: Check
    socket: str | None
    on_lost: OnLost

    def build(self, _resources: ExitStack) -> JoinedLayout:
        """Build the part of this process, together with all others."""
        loaded = load(self.spec, params=self.params)
        if not loaded.spec.processes:
            raise Unsuitable(f"{loaded.name} has no processes", hint="memtopo.applied builds it in this process")
        target, held = resolved(self.machine), endpoint(loaded.name, self.socket)
        signals = deferred()

        def check_signals() -> int:
            signals.handle()
            return 0

        try:
            with signals, coordinated(joining_endpoint(held), self.timeout, check_signals) as member:
                member.join(self._request(loaded.document, target), self.timeout + _ANSWER)
                session = JoinedSession(member, target, held, signals)
        except JoinRefused as error:
            raise NotJoined(error.message, hint=error.hint, exit_code=error.exit_code) from None
        session.begin(verify=True)
        return JoinedLayout(session, self.process, self.on_lost)

    def _request(self, document: Document, target: Target) -> Join:
        return Join(
            version=__version__,
            process=str(self.process),
            spec=SpecText.of(document),
            machine=target.name,
            record=dump(target.machine) if target.simulated else None,
            gpus=() if target.simulated else tuple(uuids(target.open())),
            check=self.check,
            timeout=self.timeout,
            world=getattr(self.process, "world", None),
        )


_INTERVAL = 0.05
_ANSWER = 10.0
"""Seconds that the coordinator has for its answer, once all processes have come or are late."""


def join(
    spec: SpecLike,
    process: str,
    machine: MachineLike = "local",
    *,
    timeout: str | float = 60.0,
    params: Params | None = None,
    check: Check = "fast",
    socket: str | os.PathLike[str] | None = None,
    on_lost: OnLost = "raise",
) -> Joined:
    """Be one process of a multi-process spec for the duration of a `with`, together with all its other processes.

    `process` is the label of this process, such as `rank.0`, or `memtopo.rank()`. The processes of a layout meet by its
    name; the first one starts a small process that coordinates them, and holds the layout under its name for other
    programs. `timeout`, in seconds or as `60s`, is how long each waits for the others, and after which a process that
    is silent counts as lost. `socket` is a folder that the processes share, in place of the user's own; `machine`,
    `params` and `check` have to be the same in all processes.

    Entering raises `InvalidSpec`, `Unavailable`, `NotJoined` if the processes do not make the layout of the spec,
    `NoLayout` if no coordinator answers, and `NotApplied` with the report of all processes after everything was undone.
    """
    seconds = parse_duration(timeout) if isinstance(timeout, str) else float(timeout)
    where = os.fspath(socket) if socket else None
    return Joined(_Options(spec, process, machine, seconds, params, check, where, on_lost).build)


__all__ = ["Joined", "JoinedLayout", "Rank", "join", "rank"]
