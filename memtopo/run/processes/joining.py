"""Coordinator of a layout whose processes are a user's own: gathers them, conducts them, and serves the layout.

It is a small process that the first of them starts. The layout is held at its usual socket meanwhile, so that other
programs list, check, switch and change it, and import from it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from memtopo import language
from memtopo import machine as machines
from memtopo import spec as specs
from memtopo.common.errors import Exit, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.text import enumerated
from memtopo.common.version import __version__
from memtopo.driver.handles import Handle
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Check, Checks, Report
from memtopo.run import messages
from memtopo.run.conductor import conduct
from memtopo.run.holder import Holder, about_holder
from memtopo.run.layout_plans import Goal, LayoutPlans
from memtopo.run.messages import Attend, Attending, Ended, Join, Leave, NotJoined, Resume
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.router import Peers
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.run.processes.workers import Workers
from memtopo.session.composition import Composition, InvalidOnMachine, revision
from memtopo.session.saved import spec_digest
from memtopo.session.trials import with_needed_trials
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.holder.state import ProgressNotices
from memtopo.sharing.sockets import peer

_INTERVAL = 0.1
_ALONE = 5.0
"""Seconds after which a coordinator ends to which no process is connected: that which started it has another one."""


def main(folder: str, file: str, name: str, timeout: str) -> None:
    """Coordinate the processes that connect to a socket, unless another process does."""
    where = Endpoint(folder, file, name or None)
    stopped = _stop_signal()
    try:
        claimed = claim(where)
    except ExchangeError:
        return
    with claimed:
        gathered = Gathering(float(timeout), stopped)
        with claimed.listen() as listener:
            try:
                composition = gathered.wait(listener)
            except MemtopoError as error:
                gathered.refuse(error)
                return
            claimed.unlink_socket()
        held = replace(where, file=file.removesuffix(".join.sock") + ".sock")
        try:
            with claim(held) as owned:
                _conduct(gathered, composition, owned, stopped)
        except MemtopoError as error:
            gathered.refuse(error)


def _stop_signal() -> Callable[[], int]:
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: received.append(number))
    return lambda: received[0] if received else 0


class NotComplete(MemtopoError):
    """Processes that do not make the layout of a spec."""

    exit_code = Exit.FAILED


@dataclass(frozen=True, slots=True)
class Joining:
    """A process that has come."""

    pid: int
    channel: Channel[messages.FromMember]
    request: Join

    @property
    def name(self) -> str:
        return f"{self.request.process} (process {self.pid})"


class Gathering:
    """The processes that have come to be those of a layout, each of which waits for all others."""

    def __init__(self, timeout: float, stopped: Callable[[], int]) -> None:
        self._timeout, self._stopped = timeout, stopped
        self._connected: dict[int, tuple[Channel[messages.FromMember], int]] = {}
        self.joined: dict[str, Joining] = {}
        self._labels: Sequence[str] = ()

    def wait(self, listener: socket.socket) -> Composition:
        """Wait for all processes, and return the layout that they are to build. Raises `NotComplete`."""
        clock = RunningClock()
        listener.setblocking(False)  # noqa: FBT003 the signature is the library's
        while not self._labels or len(self.joined) < len(self._labels):
            poll = select.poll()
            for fd in (listener.fileno(), *self._connected):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(_INTERVAL * 1000):
                self._accept(listener) if fd == listener.fileno() else self._receive(fd)
            if self._stopped():
                raise NotComplete("the coordinator of the layout was stopped")
            if clock.time() > (self._timeout if self.joined or self._connected else min(self._timeout, _ALONE)):
                raise NotComplete(self._missing())
        return self._composed()

    def refuse(self, error: MemtopoError) -> None:
        """Have all processes that have come raise an error."""
        answer = NotJoined(error.message, error.hint, error.exit_code)
        for channel, _ in self._connected.values():
            channel.send(answer)
            channel.drain(1.0)
            channel.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            sock, _ = listener.accept()
            sock.setblocking(False)  # noqa: FBT003 likewise
            if peer(sock).uid == os.geteuid():
                self._connected[sock.fileno()] = Channel(sock, get_args(messages.FromMember)), peer(sock).pid
            else:
                sock.close()

    def _receive(self, fd: int) -> None:
        channel, pid = self._connected[fd]
        try:
            received = channel.receive()
        except BlockingIOError:
            return
        except ExchangeError:
            received = None
        if received is None:
            del self._connected[fd]
            self._leave(channel)
        elif isinstance(received.message, Join):
            self._join(Joining(pid, channel, received.message))
        else:
            received.close()

    def _leave(self, channel: Channel[messages.FromMember]) -> None:
        """Forget a process that has ended before all came; another one may take its place."""
        channel.close()
        self.joined = {label: each for label, each in self.joined.items() if each.channel is not channel}

    def _join(self, new: Joining) -> None:
        request, first = new.request, next(iter(self.joined.values()), new)
        if request.version != __version__:
            raise NotComplete(f"{new.name} has memtopo {request.version}, and the coordinator {__version__}")
        self._labels = self._labels or _labels(request)
        if request.process not in self._labels:
            raise NotComplete(
                f"{new.name} is none of the layout", hint=f"its processes are {enumerated([*self._labels])}"
            )
        if found := self.joined.get(request.process):
            raise NotComplete(f"{request.process} has joined twice, by processes {found.pid} and {new.pid}")
        if (digest := _digest(request)) != _digest(first.request):
            raise NotComplete(f"{new.name} has another spec, {digest}, than {first.name}, {_digest(first.request)}")
        if (request.machine, request.record) != (first.request.machine, first.request.record):
            raise NotComplete(f"{new.name} is for another machine, {request.machine}, than {first.name}")
        beside = [label for label in self._labels if label.rpartition(".")[0] == request.process.rpartition(".")[0]]
        if request.world is not None and request.world != len(beside):
            raise NotComplete(
                f"{new.name} is one of {request.world} processes of its launcher, and the spec has {len(beside)}"
            )
        self.joined[request.process] = new

    def _missing(self) -> str:
        missing = [label for label in self._labels if label not in self.joined] or ["any process"]
        came = f"; {', '.join(each.name for each in self.joined.values())} did" if self.joined else ""
        return f"{enumerated(missing)} did not join within {self._timeout:g} s{came}"

    def _composed(self) -> Composition:
        request = next(iter(self.joined.values())).request
        document = _document(request)
        composition = Composition.of(document, with_needed_trials(self._target(request), document))
        try:
            composition.require_tried()
        except InvalidOnMachine as error:
            raise NotComplete(error.message, hint=error.hint) from error
        return composition

    def _target(self, request: Join) -> Target:
        """The machine with the GPUs that all processes see, in their order, or with all GPUs if these differ."""
        if request.record is not None:
            return target.recorded(request.machine, machines.parse(request.record.encode(), request.machine))
        seen = {each.request.gpus for each in self.joined.values()}
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if len(seen) == 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{_dashed(uuid)}" for uuid in next(iter(seen)))
        return target.resolve(request.machine)

    def visible(self, composition: Composition) -> Mapping[str, tuple[int, ...]]:
        """Ordinals of the GPUs that each process sees, empty for all in order. Raises `NotComplete`."""
        every = target.uuids(composition.target.machine)
        gpus = {label: every if each.request.record else each.request.gpus for label, each in self.joined.items()}
        found = {label: target.ordinals(own, every) for label, own in gpus.items()}
        for label, geometry in composition.geometry.processes.items():
            if lacking := [gpu for gpu in geometry.gpus if found[label] and gpu not in found[label]]:
                raise NotComplete(f"{self.joined[label].name} uses gpu{lacking[0]}, which it does not see")
        return found


def _dashed(uuid: str) -> str:
    return "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))


def _document(request: Join) -> language.Document:
    return request.spec.read()


def _digest(request: Join) -> str:
    return spec_digest(_document(request))


def _labels(request: Join) -> Sequence[str]:
    """Labels of the processes of a spec, which each process has read before it came."""
    document = _document(request)
    return specs.read(document.root, document.left_out)[0].labels


class JoinedProcess(WorkerProcess):
    """A process that a user started: it is never signalled, and its end is that of its channel."""

    def __init__(self, joined: Joining, clock: RunningClock) -> None:
        super().__init__(joined.request.process, joined, joined.channel, clock)  # type: ignore[arg-type]
        self.attends = 0
        self.left = self._ending = False

    def take_down(self, reason: str = "", *, failed: bool = False) -> None:
        self._ending = True
        super().take_down(reason, failed=failed)

    def receive(self, received: Received[messages.FromWorker] | None) -> messages.StepsDone:
        done = super().receive(received)
        if self.report:
            self.gone = True  # its channel stays for the report of all
        return done

    def _update(self, message: object) -> None:
        match message:
            case Attending(number):
                self.attends = number
            case Leave():
                self.left = True
            case _:
                super()._update(message)  # type: ignore[arg-type]

    def silent(self, seconds: float) -> bool:
        return not self._ending and super().silent(seconds)

    def kill(self, reason: str) -> None:
        if not self._ending:
            self.death, self.gone = self.death or reason, True

    def _signal(self, number: signal.Signals) -> None:
        del number

    def _end_of_channel(self) -> None:
        self.gone = True
        if self.report is None and self.failed is None:
            self.death = self.death or "has ended"


class JoinedWorkers(Workers):
    """Conductor of processes that a user started, which take part in changes when they are ready to."""

    workers: dict[str, JoinedProcess]  # type: ignore[assignment]

    def __init__(
        self,
        ensemble: Ensemble,
        joined: Gathering,
        visible: Mapping[str, tuple[int, ...]],
        progress: Progress,
        stop: Callable[[], int],
    ) -> None:
        super().__init__(ensemble, SafeProgress(progress), lambda: stop() or self._left(), Peers())
        self._joined, self._visible = joined.joined, visible
        self._round, self._attended = 0, False

    def _left(self) -> int:
        """A process that leaves ends the layout, as a stop does."""
        return signal.SIGTERM if any(each.left for each in self.workers.values()) else 0

    def _cause(self) -> str:
        left = [each.label for each in self.workers.values() if each.left]
        return super()._cause() or (f"{enumerated(left, 'and')} has left" if left else "")

    def _launch(self, label: str, gates: Sequence[int], visible: tuple[int, ...]) -> None:
        del visible
        self.workers[label] = worker = JoinedProcess(self._joined[label], self._clock)
        message = self.ensemble.start_message(label, self._visible[label])
        message = replace(message, origin=self._origin, exclusive=False)
        worker.channel.send(message, [Handle(fd=os.dup(end)) for end in gates])

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Have all processes take part in the code inside. Raises `ExchangeError` if one does not in time."""
        if self._attended:
            yield
            return
        self._round += 1
        self._attended = True
        for worker in self.workers.values():
            worker.channel.send(Attend(self._round))
        try:
            self._await_attendance()
            yield
        finally:
            self._attended = False
            self.resume()

    def resume(self) -> None:
        """Have all processes go on with their programs."""
        for worker in self.workers.values():
            worker.channel.send(Resume(self.generation))

    def _await_attendance(self) -> None:
        clock = RunningClock()
        while absent := [each.label for each in self.workers.values() if each.attends < self._round]:
            self._receive(min(_INTERVAL, self.interval))
            if self._over or self.stop():
                raise ExchangeError("state", "the layout is about to be taken down")
            if clock.time() > self.ensemble.timeout:
                message = f"{enumerated(absent)} did not take part within {self.ensemble.timeout:g} s"
                raise ExchangeError("busy", f"{message}; nothing was changed", hint="call layout.poll() there")

    def switch(self, state: str, in_use: Collection[str] = (), *, check: Check = "fast") -> Checks:
        """Bring all processes to a state; if another one has requested the same before, none takes part again."""
        if state == self.state and self._results and check != "full":
            return self.checks()
        return super().switch(state, in_use, check=check)

    def _bring_to(self, goal: Goal) -> None:
        with self.attended():
            super()._bring_to(goal)

    def recheck_each(self) -> Mapping[str, Checks]:
        with self.attended():
            return super().recheck_each()

    def plan(self, goal: Goal) -> LayoutPlans:
        with self.attended():
            return super().plan(goal)

    def request_handles(self, holder: str, export: str, first: int, count: int) -> Sequence[Handle]:
        with self.attended():
            return super().request_handles(holder, export, first, count)

    def report(self) -> Report:
        report = super().report()
        for worker in self.workers.values():
            worker.channel.send(Ended(report))
            worker.channel.drain(1.0)
        return report


def _conduct(gathered: Gathering, composition: Composition, owned: Claim, stopped: Callable[[], int]) -> None:
    first = next(iter(gathered.joined.values())).request
    visible = gathered.visible(composition)
    request = composition.request(check=first.check, timeout=first.timeout)
    progress = ProgressNotices()
    holder = Holder(
        owned,
        about_holder(composition, request),
        partial(revision, target=composition.target),
        gpus=[device.uuid for device in composition.target.machine.devices],
        stopped_by="a process that left",
        progress=progress,
    )
    ensemble = Ensemble(request, first.spec, composition.target.machine, first.timeout)
    with JoinedWorkers(ensemble, gathered, visible, progress, stopped) as workers:
        owned.report_end(conduct(workers, replace(holder, ready=workers.resume).hold))
