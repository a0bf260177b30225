"""Processes of a layout of several, as actors: production workers, or members, which a user has started.

A conductor starts workers, signals them and waits for them. Members take part between steps of their own.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args

from msgspec.structs import replace

from memtopo.api.joined_member import JoinedSession, LayoutOfMembers
from memtopo.common.errors import MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.signals import deferred
from memtopo.driver.kernels import KernelDriver
from memtopo.drivers.target import Target
from memtopo.kinds.heaps.steps import heaps
from memtopo.run.messages import FromWorker, StartWorker, ToWorker
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.gates import Gate
from memtopo.run.processes.member import Member
from memtopo.run.processes.worker import Worker, WrapDriver
from memtopo.run.processes.worker_process import UserProcess, WorkerProcess
from memtopo.sharing.channel import Channel
from memtopo.sharing.status import Notice
from tests.story.heaps import HeapUser
from tests.story.world import Actor, Broken

STEP = 0.02
"""Seconds of a step of a member's program."""


class Faults(Protocol):
    """Number of the faults that have befallen processes, after which these may fail."""

    faults: int


class _Gate(Gate):
    """A gate of an actor, which may end while it closes it."""

    closed = False

    def close(self) -> None:
        """Close both ends, once."""
        if not self.closed:
            self.closed = True
            super().close()


class _Worker(Worker):
    """A worker whose run the story knows."""

    run: ProcessRun | None = None

    def prepare(self, start: StartWorker, wrap: WrapDriver) -> ProcessRun:
        self.run = super().prepare(start, wrap)
        return self.run


@dataclass(slots=True)
class WorkerProgram:
    """A process of a layout, which works as its conductor commands."""

    oracle: Faults
    sock: socket.socket
    ends: Sequence[int]
    stopped: int = 0
    status: int = -signal.SIGKILL
    worker: _Worker | None = None

    @property
    def run(self) -> ProcessRun | None:
        """Run of the process, once it has one."""
        return self.worker.run if self.worker else None

    def lose_parent(self) -> None:
        """Stop, as the system requests when the conductor has ended."""
        self.stopped = signal.SIGTERM

    def __call__(self, actor: Actor) -> None:
        actor.doing = ""
        gates = _gates(self.ends, actor)
        channel: Channel[ToWorker] = Channel(self.sock, get_args(ToWorker), actor.system)
        self.worker = _Worker(channel, gates, lambda: self.stopped, actor.system)

        def opened(_process: str, driver: KernelDriver) -> KernelDriver:
            driver.close()  # type: ignore[attr-defined]
            return actor.open_driver()

        try:
            self.worker.work(opened)
            self.status = 0
        finally:
            for gate in gates:
                gate.close()
        _end(actor, self.oracle)


class _Member(Member):
    """A member whose driver is one of the story."""

    def __init__(self, actor: Actor, channel: Channel[ToWorker], gates: tuple[Gate, Gate], start: StartWorker) -> None:
        self._actor = actor
        super().__init__(channel, gates, start, lambda: 0, actor.system)

    def wrap(self, _process: str, driver: KernelDriver) -> KernelDriver:
        driver.close()  # type: ignore[attr-defined]
        return self._actor.open_driver()


@dataclass(slots=True)
class MemberProgram:
    """A process of a user, which takes part in what is requested between its own steps, and leaves by itself.

    `step` is the number of seconds of its next step, after which it leaves if it `quits`.
    """

    oracle: Any
    sock: socket.socket
    ends: Sequence[int]
    start: StartWorker
    target: Target
    step: float = STEP
    quits: bool = False
    leaving: bool = False
    member: _Member | None = None
    heap: HeapUser = field(init=False)

    def __post_init__(self) -> None:
        self.heap = HeapUser(self.oracle)

    @property
    def run(self) -> ProcessRun | None:
        """Run of the process, while the layout has it."""
        return self.member.run if self.member and not self.leaving else None

    def lose_parent(self) -> None:
        """Do nothing: the process is no child of its coordinator."""

    def __call__(self, actor: Actor) -> None:
        actor.doing = "join"
        gates = _gates(self.ends, actor)
        try:
            self._join(actor, gates)
        except MemtopoError as error:
            actor.world.note(actor.name, f"does not join: {type(error).__name__}")
        finally:
            for gate in gates:
                gate.close()
            for heap in heaps(self.member.run.execution.layout).values() if self.member else ():
                heap.native.table.close()  # as the end of a process does
        _end(actor, self.oracle)

    def _join(self, actor: Actor, gates: tuple[Gate, Gate]) -> None:
        channel: Channel[ToWorker] = Channel(self.sock, get_args(ToWorker), actor.system)
        self.member = _Member(actor, channel, gates, self.start)
        session = JoinedSession(self.member, self.target, actor.world.endpoint, deferred())
        session.begin()
        layout = LayoutOfMembers(session, actor.name, "raise")
        layout.on_change = self._note_change
        try:
            while not self.quits and layout.over is None:
                actor.doing, step, self.step = "", self.step, STEP
                actor.pause(step)
                actor.doing = "poll"
                layout.poll()
                self.heap.follow(actor, layout)
                while actor.inbox and layout.over is None:
                    event = actor.inbox.popleft()
                    actor.doing = event.verb
                    self.heap.act(actor, layout, event.verb, *event.args)
        except MemtopoError as error:
            actor.world.note(actor.name, f"poll: {type(error).__name__}")
        actor.doing, self.leaving = "leave", True
        report = session.end()
        actor.world.note(actor.name, f"leaves: {report.outcome}, {len(report.leaks)} left")

    def _note_change(self, notice: Notice) -> None:
        if notice.kind == "changing" and notice.state:
            self.heap.leaves(notice.state)


def _gates(ends: Sequence[int], actor: Actor) -> tuple[Gate, Gate]:
    """Return the gates of a process."""
    read, write, last_read, last_write = ends
    return _Gate(read, write, actor.system), _Gate(last_read, last_write, actor.system)


def _end(actor: Actor, oracle: Faults) -> None:
    """End the drivers of a process, which has left nothing unless something befell it."""
    for driver in actor.drivers:
        if driver.taken and not oracle.faults:
            raise Broken(f"{actor.name} has left {driver.taken}")
        driver.end()


@dataclass(slots=True)
class StoryProcess:
    """A worker as its conductor reaches it."""

    actor: Actor
    conductor: Actor
    pid: int

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal."""
        if number == signal.SIGKILL:
            self.actor.end_soon()
        else:
            self.actor.program.stopped = number
        return True

    def end(self, seconds: float) -> int:
        """Wait for the end, and kill the process after so many seconds; return its status."""
        until = self.conductor.system.now() + seconds
        while self.actor.alive and self.conductor.system.now() < until:
            self.conductor.pause(0.1)
        self.actor.end_soon()
        status: int = self.actor.program.status
        return status


@dataclass(slots=True)
class StorySource:
    """Source of the processes of a layout, which become actors of the story."""

    ensemble: Ensemble
    conductor: Actor
    oracle: Faults
    target: Target | None = None
    """Machine of members, which have joined the layout; None for workers."""

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        """Start a worker, which has ends of the gates of its own."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        visible = tuple(location.id for location in self.ensemble.processes[label].visible)
        start = replace(self.ensemble.start_message(label, visible), origin=origin)
        ends = [*map(os.dup, gates)]
        program: Any = WorkerProgram(self.oracle, theirs, ends)
        if self.target:
            program = MemberProgram(self.oracle, theirs, ends, replace(start, exclusive=False), self.target)
        actor = self.conductor.world.start(label, program)
        actor.machine, actor.budget = self.conductor.machine, self.conductor.budget
        actor.sockets.append(theirs)
        self.conductor.sockets.append(ours)
        self.conductor.children.append(actor)
        channel: Channel[FromWorker] = Channel(ours, get_args(FromWorker), self.conductor.system)
        if self.target:
            return WorkerProcess(label, UserProcess(actor.pid), channel, clock)
        channel.send(start)
        return WorkerProcess(label, StoryProcess(actor, self.conductor, actor.pid), channel, clock)

    def close(self) -> None:
        """Do nothing: each worker ends by itself."""
