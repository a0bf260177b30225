"""The lab: has children make the trials, each under a time limit, and brings them together with the importing one.

A child that hangs is killed and one that dies is replaced; what it was at is told, and what is left goes on.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from memtopo.common.errors import MemtopoError
from memtopo.machine.probe.child_process import Child, now
from memtopo.machine.probe.messages import Message, close
from memtopo.machine.probe.trial_resources import FATAL
from memtopo.machine.probe.trial_table import Ask

LIMIT = 20.0
"""Seconds that a trial has, the making of its contexts among them."""

HANDED = 10.0
"""Seconds that the importing process has for one request."""

START = 60.0
"""Seconds that a child has for its imports and the driver's start."""

TICK = 0.2

TIMEOUT = "TIMEOUT"
CONTEXT = "cuDevicePrimaryCtxRetain"


class Stopped(MemtopoError):
    """Somebody asked to stop."""

    exit_code = 130


@dataclass(frozen=True, slots=True)
class Limits:
    """How many seconds a trial has, the importing process for one request, and a child to start."""

    trial: float = LIMIT
    handed: float = HANDED
    start: float = START


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one trial; `works` is None where nothing can be said. Times are seconds."""

    works: bool | None = None
    error: str | None = None
    call: str | None = None
    note: str | None = None
    seconds: float = 0.0
    contexts: float = 0.0
    data: dict[str, Any] | None = None


@dataclass(slots=True)
class _Lane:
    """What one child after another is to do, in turn."""

    left: deque[tuple[int, Ask]]
    child: Child | None = None
    begun: int | None = None
    until: float = 0.0
    waiting: bool = False
    broken: str | None = None


_Owner = tuple[_Lane, Child]
"""Who asked the importing process for something: by the time of the answer it may be dead, and another one there."""


@dataclass(slots=True)
class Findings:
    """Outcomes by number, what could not be ended, what went with a child only, and the seconds that starting took."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    starting: float = 0.0


class Lab:
    """Runs lanes of trials side by side."""

    def __init__(
        self, record: bytes | None, stop: Callable[[], int], limits: Limits, command: Sequence[str] = ()
    ) -> None:
        self._record, self._stop, self._limits, self._command = record, stop, limits, command
        self._lanes: list[_Lane] = []
        self._importer: Child | None = None
        self._requests: deque[tuple[_Owner, Message, list[int]]] = deque()
        self._handed: tuple[_Owner, float] | None = None
        self._importer_ready = False
        self.findings = Findings()

    def run(self, lanes: Sequence[Sequence[tuple[int, Ask]]], *, importing: bool) -> Findings:
        """Make all trials. Raises `Stopped`; whatever happens, no child is left."""
        self._lanes = [_Lane(deque(asks)) for asks in lanes if asks]
        try:
            if importing:
                self._start_importer()
            for lane in self._lanes:
                self._start(lane)
            while any(lane.child for lane in self._lanes):
                self._turn()
        finally:
            self._end_all()
        return self.findings

    def _turn(self) -> None:
        if self._stop():
            raise Stopped("interrupted")
        children = {lane.child.channel: lane for lane in self._lanes if lane.child}
        watched = [*children, *([self._importer.channel] if self._importer else [])]
        ready, _, _ = select.select(watched, [], [], TICK)
        for channel in ready:
            if lane := children.get(channel):
                self._hear(lane)
            elif self._importer and channel is self._importer.channel:
                self._hear_importer(self._importer)
        self._hand_on()
        self._enforce()

    def _start(self, lane: _Lane) -> None:
        lane.begun, lane.until, lane.waiting = None, now() + self._limits.start, False
        if not lane.left:
            return
        try:
            lane.child = Child.start(list(lane.left), self._record, self._command)
        except OSError as error:
            self._give_up(lane, f"no process could be started for it: {error.strerror}")

    def _hear(self, lane: _Lane) -> None:
        assert lane.child
        said = lane.child.receive()
        if said is None:
            self._died(lane, lane.child)
            return
        message, fds = said
        if "begin" in message:
            lane.begun, lane.until = message["begin"], now() + self._limits.trial
        elif "end" in message:
            self._ended(lane, message)
        elif "import" in message:
            lane.waiting = True
            self._requests.append(((lane, lane.child), message["import"], fds))
        elif "ready" in message:
            self.findings.starting = max(self.findings.starting, message["ready"])
        elif "broken" in message:
            lane.broken = message["broken"]
        elif "done" in message:
            open_ = [f"{count} {kind}" for kind, count in message["left"].items() if count]
            self.findings.notes += [f"trials left {', '.join(open_)}, which went with their process"] * bool(open_)
            self._finish(lane, kindly=True)

    def _ended(self, lane: _Lane, message: Message) -> None:
        number, _ = lane.left.popleft()
        # A GPU that is full, or that gives no context, tells nothing about what it can do.
        unable = message.get("error") == "CUDA_ERROR_OUT_OF_MEMORY" or message.get("call") == CONTEXT
        works = message.get("works", None if unable else False)
        times = message["seconds"], message["contexts"]
        told = message.get("error"), message.get("call"), message.get("why")
        self.findings.outcomes[number] = Outcome(works, *told, *times, message.get("data"))
        lane.begun, lane.until = None, now() + self._limits.start

    def _died(self, lane: _Lane, child: Child) -> None:
        how = child.end(kindly=True) or "SIGKILL"
        lane.child = None
        if lane.begun is not None:
            number, _ = lane.left.popleft()
            self.findings.outcomes[number] = Outcome(works=False, error=how, note=lane.broken)
        elif how != "EXIT 0" or lane.broken:
            self._give_up(lane, f"its process did not start: {lane.broken or how}")
        self._start(lane)

    def _give_up(self, lane: _Lane, why: str) -> None:
        while lane.left:
            self.findings.outcomes[lane.left.popleft()[0]] = Outcome(note=why)

    def _finish(self, lane: _Lane, *, kindly: bool = False) -> None:
        assert lane.child
        lane.child.end(kindly=kindly)
        if pid := lane.child.stuck:
            self.findings.left.append(f"process {pid}, which does not end although it was killed")
        lane.child = None

    def _enforce(self) -> None:
        """Kill what hangs: a trial, a start, or the importing process."""
        for lane in self._lanes:
            if not lane.child or lane.waiting or now() < lane.until:
                continue
            self._finish(lane)
            if lane.begun is None:
                self._give_up(lane, "its process did not start in time")
            else:
                number, _ = lane.left.popleft()
                self.findings.outcomes[number] = Outcome(works=False, error=TIMEOUT)
            self._start(lane)
        if self._handed and now() > self._handed[1]:
            self._importer_gone(TIMEOUT)

    def _start_importer(self) -> None:
        self._importer_ready = False
        with suppress(OSError):
            self._importer = Child.start(None, self._record, self._command)

    def _hand_on(self) -> None:
        """Give the importing process its next request, one at a time."""
        if self._handed or not self._requests:
            return
        if self._importer is None:
            self._start_importer()
        owner, request, fds = self._requests.popleft()
        if self._importer is None:
            close(fds)
            self._answer(owner, {"error": "EXIT"})
            return
        patience = self._limits.handed if self._importer_ready else self._limits.start
        self._handed = owner, now() + patience
        self._importer.send(request, fds)

    def _hear_importer(self, importer: Child) -> None:
        said = importer.receive()
        if said is None:
            self._importer_gone(importer.end(kindly=True) or "SIGKILL")
        elif "ready" in said[0]:
            self._importer_ready = True
            if self._handed:
                self._handed = self._handed[0], now() + self._limits.handed
        elif "got" in said[0] and self._handed:
            owner, self._handed = self._handed[0], None
            if said[0]["got"].get("error") in FATAL:
                importer.end()
                self._importer = None  # another one is started when it is needed
            self._answer(owner, said[0]["got"])

    def _importer_gone(self, how: str) -> None:
        if self._importer:
            self._importer.end()
        self._importer = None
        if self._handed:
            owner, self._handed = self._handed[0], None
            self._answer(owner, {"error": how})

    def _answer(self, owner: _Owner, answer: Message) -> None:
        lane, child = owner
        if lane.child is child:
            lane.waiting, lane.until = False, now() + self._limits.trial
            child.send({"got": answer})

    def _end_all(self) -> None:
        for lane in self._lanes:
            if lane.child:
                self._finish(lane)
        if self._importer:
            self._importer.end(kindly=not self._handed)
            self._importer = None
        while self._requests:
            close(self._requests.popleft()[2])
