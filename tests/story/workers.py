"""Processes of a layout of several: production workers as actors, which a conductor starts, signals and waits for."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from memtopo.common.processes import RunningClock
from memtopo.driver.kernels import KernelDriver
from memtopo.run.messages import FromWorker, StartWorker, ToWorker
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.gates import Gate
from memtopo.run.processes.worker import Worker, WrapDriver
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.sharing.channel import Channel
from tests.story.oracle import Oracle
from tests.story.world import Actor, Broken


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

    oracle: Oracle
    sock: socket.socket
    ends: Sequence[int]
    stopped: int = 0
    status: int = -signal.SIGKILL
    worker: _Worker | None = None

    def __call__(self, actor: Actor) -> None:
        actor.doing = ""
        read, write, last_read, last_write = self.ends
        gates = _Gate(read, write, actor.system), _Gate(last_read, last_write, actor.system)
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
        for driver in actor.drivers:
            if driver.taken and not self.oracle.faults:
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
    oracle: Oracle

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        """Start a worker, which has ends of the gates of its own."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        actor = self.conductor.world.start(label, WorkerProgram(self.oracle, theirs, [*map(os.dup, gates)]))
        actor.sockets.append(theirs)
        self.conductor.sockets.append(ours)
        self.conductor.children.append(actor)
        visible = tuple(location.id for location in self.ensemble.processes[label].visible)
        channel: Channel[FromWorker] = Channel(ours, get_args(FromWorker), self.conductor.system)
        channel.send(replace(self.ensemble.start_message(label, visible), origin=origin))
        return WorkerProcess(label, StoryProcess(actor, self.conductor, actor.pid), channel, clock)

    def close(self) -> None:
        """Do nothing: each worker ends by itself."""
