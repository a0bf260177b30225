"""A worker: one process of a layout, told by the coordinator what to do when, and able to end by itself.

It ends in order whatever happens to the others: where the coordinator is gone or silent, it takes down what it built.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from memtopo.common.errors import InternalError, MemtopoError
from memtopo.executor import Peers, StepFailed, Stopped
from memtopo.kinds.steps import Phase
from memtopo.run.apply import Run
from memtopo.run.processes.gates import Gate
from memtopo.run.processes.link import Link
from memtopo.run.processes.messages import Briefing, pack
from memtopo.run.processes.worker_run import Setting, Wrap, prepare
from memtopo.sharing.shelf import LiveShelf
from memtopo.sharing.wire import Packet

_PR_SET_PDEATHSIG = 1
_TICK = 0.2


class Gone(MemtopoError):
    """The coordinator is not there any more."""


def main(descriptors: Sequence[str], wrap: Wrap = lambda _process, driver: driver) -> None:
    """Work until told to end, or until there is nobody left to work for.

    `descriptors` are the numbers of the conversation's and of the two ends of each of the two gates.
    """
    link, *gates = (_private(int(each)) for each in descriptors)
    stopped = _watch()
    worker = Worker(Link(socket.socket(fileno=link)), Gate(*gates[:2]), Gate(*gates[2:]), stopped)
    worker.work(wrap)


def _private(fd: int) -> int:
    """No program that this one may start inherits it."""
    os.set_inheritable(fd, False)  # noqa: FBT003 the function takes it so
    return fd


def _watch() -> Callable[[], int]:
    """Remember SIGTERM, which the system sends when the coordinator dies; Ctrl-C is the coordinator's to hear."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by who started this one, until now
    signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        seen.append(signal.SIGTERM)
    return lambda: seen[0] if seen else 0


class Worker:
    """One process's side of the conversation."""

    def __init__(self, link: Link, unused: Gate, emptied: Gate, stopped: Callable[[], int]) -> None:
        self._link, self._unused, self._emptied, self._stopped = link, unused, emptied, stopped
        self._shelf: LiveShelf | None = None
        self._patience: float | None = 60.0
        self._got: Packet | None = None

    def work(self, wrap: Wrap) -> None:
        """Build what the briefing says, step by step as told, and report."""
        try:
            self._work(wrap)
        except MemtopoError as error:
            self._link.send({"broken": error.message, "hint": error.hint, "exit": error.exit_code})
        except Exception as error:  # noqa: BLE001 the coordinator tells it; a traceback here would be lost
            self._link.send({"broken": f"internal error: {type(error).__name__}: {error}", "hint": None, "exit": 70})
        self._unused.close()
        self._emptied.close()
        self._finish()

    def _work(self, wrap: Wrap) -> None:
        try:
            packet = self._hear()
        except Stopped as error:
            raise Gone("interrupted before anything was built") from error
        briefing = Briefing.unpack(packet.fds.pop())
        self._patience = briefing.timeout
        run = prepare(briefing, Setting(wrap, self.ask, self.alive, self._stopped))
        self._link.send({"ready": os.getpid(), "turns": run.proving.turns, "volume": run.proving.volume})
        try:
            with run.guarded():
                self._obey(run)
            if run.failure or run.stopped:
                self._link.send({"failed": str(run.failure or "interrupted")})
        finally:
            run.take_down(_Together(self._unused, self._emptied, briefing.timeout, self.alive))
        self._link.send({"report": briefing.process}, [pack(run.report())])

    def _obey(self, run: Run) -> None:
        execution = run.execution
        self._shelf = LiveShelf(run.job.geometry.exports, execution.layout, execution.driver, run.look)
        while (packet := self._command()).message["do"] != "down":
            do, message = packet.message["do"], packet.message
            match do:
                case "build":
                    run.build(Phase(message["phase"]))
                case "check":
                    run.check()
                case "write":
                    run.proving.write(message["turn"])
                case "read":
                    run.proving.read(message["turn"])
                case "forbid":
                    run.proving.forbid()
                case "unproven":
                    run.proving.unproven(message["why"])
                case "look":
                    self._look(run)
                    continue
                case "hold":
                    self._link.send({"offers": run.job.process}, [pack(tuple(self._serving().offers()))])
                case _:
                    raise InternalError(f"a worker is told to {do}")
            self._link.send({"done": do, "same": run.as_declared, "safe": run.proving.safe})
        self._shelf = None

    def _look(self, run: Run) -> None:
        """Say what a check finds now, or that there could be none; either way the layout stands."""
        try:
            self._link.send({"checks": run.job.process}, [pack(run.look())])
        except MemtopoError as error:
            self._link.send({"checks": run.job.process, "error": error.message})

    def ask(self, holder: str, export: str, first: int, count: int) -> Packet:
        """Handles of a sibling's export; what it asks meanwhile is answered. Raises `MemtopoError`."""
        self._link.send({"ask": export, "of": holder, "first": first, "count": count})
        while self._got is None:
            self._step()
        packet, self._got = self._got, None
        if error := packet.message.get("error"):
            packet.close()
            raise MemtopoError(f"{holder} does not give {export}: {error}")
        return packet

    def alive(self, steps: int) -> None:
        """Tell the coordinator that work goes on."""
        self._link.send({"progress": steps})

    def _command(self) -> Packet:
        while True:
            if self._stopped():
                raise Stopped
            try:
                if packet := self._heard():
                    return packet
            except Gone as error:
                raise StepFailed(None, "working with the other processes", error) from error

    def _step(self) -> None:
        # The command to end may come at any time, and is the only one that does.
        if self._stopped() or self._heard():
            raise Stopped

    def _hear(self) -> Packet:
        until = time.monotonic() + self._patience if self._patience else None
        while not self._link.ready(_TICK):
            if self._stopped():
                raise Stopped
            if until and time.monotonic() > until:
                raise Gone(f"the coordinator has not been heard of for {self._patience:g} s")
        packet = self._link.receive()
        if packet is None:
            raise Gone("the coordinator is gone")
        return packet

    def _heard(self) -> Packet | None:
        """The next command; None for what is not one, which is seen to here."""
        try:
            packet = self._hear() if not self._stopped() else None
        except BlockingIOError:
            return None
        if packet is None or packet.message.get("do") == "alive":
            return None
        if "got" in packet.message:
            self._got = packet
            return None
        if packet.message.get("do") == "handles":
            self._give(packet.message)
            return None
        return packet

    def _give(self, message: dict[str, Any]) -> None:
        """Handles of this process's own exports, for a sibling."""
        answer: dict[str, Any] = {"got": message["for"]}
        fds: list[int] = []
        secrets: list[str] = []
        try:
            for index in range(message["first"], message["first"] + message["count"]):
                handle = self._serving().handle(message["export"], index)
                if handle.fd is not None:
                    fds.append(handle.fd)
                if handle.secret is not None:
                    secrets.append(handle.secret.reveal().hex())
            answer["secrets"] = secrets
        except MemtopoError as error:
            answer["error"] = error.message
        self._link.send(answer, fds)

    def _serving(self) -> LiveShelf:
        if self._shelf is None:
            raise MemtopoError("it is not serving")
        return self._shelf

    def _finish(self) -> None:
        """Wait until the last words are on their way, but not for ever."""
        until = time.monotonic() + (self._patience or 5.0)
        while self._link.waiting and time.monotonic() < until:
            self._link.ready(_TICK)
        self._link.close()


class _Together(Peers):
    """Teardown in step with the siblings, for as long as they are alive and answer."""

    def __init__(self, unused: Gate, emptied: Gate, timeout: float, alive: Callable[[int], None]) -> None:
        self._unused, self._emptied, self._timeout, self._alive = unused, emptied, timeout, alive

    def unused(self) -> bool:
        return self._wait(self._unused)

    def emptied(self) -> bool:
        return self._wait(self._emptied)

    def _wait(self, gate: Gate) -> bool:
        """Wait at a gate, and say meanwhile that it is the others who are waited for."""
        until = time.monotonic() + self._timeout
        while not gate.wait(_TICK):
            self._alive(0)
            if time.monotonic() > until:
                return False
        return True
