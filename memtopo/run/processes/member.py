"""A member: a process that a user started, which is one process of a layout for the duration of a `with`.

It executes the commands of the coordinator (`memtopo.run.processes.joining`) while the layout is built, and afterwards
at the points that its program chooses. No thread of memtopo runs meanwhile, and no signal is sent to it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, get_args

from msgspec.structs import replace

from memtopo.common.errors import Failed, InternalError, on_failure, reason
from memtopo.common.files import closing_fd
from memtopo.common.processes import RunningClock, python_command, spawn
from memtopo.common.text import process_name
from memtopo.driver.kernels import KernelDriver
from memtopo.executor import StepFailed
from memtopo.plans.report import Report
from memtopo.run import messages
from memtopo.run.messages import Attend, ChangeResult, Ended, Hold, Resume, StartWorker, TakeDown
from memtopo.run.processes.gates import Gate, WorkerGates
from memtopo.run.processes.gathering import Join, NotJoined, of_another_user
from memtopo.run.processes.worker import Commanded, ConductorLost, Worker, WrapDriver, answer
from memtopo.session.composition import HoldResult
from memtopo.sharing.channel import Channel
from memtopo.sharing.claims import claimed_folder, lock_owner, remove_stale
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.sockets import SYSTEM, System, abandon_in_children, connect_at

_COORDINATOR = "memtopo.run.processes.joining:main"
_RETRY = 0.01
"""Seconds between two attempts to connect to a coordinator that is starting."""

_STARTING = 30.0
"""Seconds that a coordinator has to claim its layout before another one is started."""

_LONGEST_FAILURE = 4096
"""Bytes of the reason for which a coordinator cannot start, which is written at once (PIPE_BUF)."""

_ANSWER = 10.0
"""Seconds that the coordinator has for its answer, once all processes have come or are late."""

_MERGING = 5.0
"""Seconds that the coordinator has for the report of all processes, once all have taken down."""


class JoinRefused(Failed):
    """Layout that a process did not join; nothing is left of it here."""


class ProcessLost(Failed):
    """Layout that can only be taken down, because one of its processes has ended or failed.

    `role` is its label, `coordinator`, or `holder`; `pid` is None if it is of another pid namespace.
    """

    def __init__(self, reason: str, role: str, pid: int | None) -> None:
        super().__init__(f"the layout can only be taken down: {reason}")
        self.role, self.pid = role, pid


class Member(Worker):
    """This process as a process of a layout; `stopped` is called between steps, and may raise."""

    wrap: WrapDriver = staticmethod(lambda _process, driver: driver)
    over: str | None = None
    """Reason for which the layout can only be taken down; None as long as it is complete."""
    lost = False
    """True if that is the end or the failure of another process, or of the coordinator."""
    _lost_process: tuple[str, int | None] = ("", None)
    """Role and number of that process."""
    generation = 1
    _attending = False

    def __init__(
        self,
        channel: Channel[messages.ToWorker],
        gates: tuple[Gate, Gate],
        start: StartWorker,
        stopped: Callable[[], int],
        system: System = SYSTEM,
        locks: Sequence[IO[bytes]] = (),
    ) -> None:
        """Plan all processes of the layout, and open the driver of this one. Raises `MemtopoError`.

        `locks` has that of the layout, which this process keeps as long as it has memory.
        """
        super().__init__(channel, gates, stopped, system)
        self._locks = locks
        self._coordinator = channel.peer.pid or None
        self.conductor = f"the coordinator (process {self._coordinator})" if self._coordinator else "the coordinator"
        self._label, self._timeout = start.process, start.timeout
        self.timeout = start.timeout
        """Seconds of silence after which a process counts as lost, and within which it takes part."""
        self.announce: Callable[[str, str], None] = lambda _state, _source: None
        """Function called before this process takes part in a change, with its state and the source of its spec.

        If it raises, this process does not take part.
        """
        opened: list[KernelDriver] = []

        def opening(process: str, driver: KernelDriver) -> KernelDriver:
            opened.append(driver)
            return self.wrap(process, driver)

        self.run = self._run = self.prepare(start, opening)
        (self.driver,) = opened
        abandon_in_children(self)

    def abandon(self) -> None:
        """Close the descriptors in a forked child: the other processes wait for their end, which is this process's."""
        self._note_lost("this process is a child of the one that has joined", self._label, os.getppid())
        for each in (*self._gates, self._channel):
            each.close()
        self._close_lock()

    def _close_lock(self) -> None:
        for each in self._locks:
            each.close()

    def build(self) -> None:
        """Execute commands until the layout is complete and served. Raises `ProcessLost` if another process failed."""
        self._channel.send(messages.WorkerReady(self.run.verification.rounds, self.run.verification.volume))
        self._attending = True
        while self._attending:
            self._execute(self._next_command())
            if self.over is not None:
                raise self.loss()

    def poll(self) -> None:
        """Execute the commands that have come, and those of a change until it is over.

        Raises what `announce` raises, and `ProcessLost`; then the layout stays as it is until `leave`.
        """
        while self.over is None and (self._attending or self._channel.wait(0)):
            try:
                if self._attending:
                    self._execute(self._next_command())
                elif command := self._receive_command():
                    self._execute(command)
            except StepFailed as failed:
                if isinstance(failed.error, ConductorLost):
                    self._note_lost(str(failed.error), "coordinator", self._coordinator)
                else:
                    # Reported at once: other processes may wait for this one, whose program leaves later.
                    self._note_lost(str(failed), self._label, os.getpid())
                    self.run.failure = failed
                    self._channel.send(messages.WorkerFailed(str(failed)))
            except ConductorLost as error:
                self._note_lost(str(error), "coordinator", self._coordinator)
        self.require_complete()

    def _note_lost(self, reason: str, role: str, pid: int | None) -> None:
        self.over, self.lost, self._lost_process = reason, True, (role, pid)

    def loss(self) -> ProcessLost:
        """Return the error for a layout that can only be taken down."""
        return ProcessLost(str(self.over), *self._lost_process)

    def wait(self, seconds: float) -> bool:
        """Wait until a message has come, for at most so many seconds; false if none has."""
        return self.over is None and self._channel.wait(seconds)

    def leave(self, held: HoldResult) -> Report:
        """Take this part down, and return its report, or that of all processes if they have left by then."""
        run = self.run
        failed = run.failure or run.stopped or (self._attending and self.over is None)
        run.hold_result = held
        self._channel.send(messages.WorkerFailed(str(run.failure or "interrupted")) if failed else messages.Leave())
        run.take_down(WorkerGates(*self._gates, self._timeout, self.alive, self._system))
        report = run.report()
        self._close_lock()
        self._channel.send(messages.WorkerFinished(report))
        report = (None if self.lost else self._merged_report()) or report
        self._timeout = min(self._timeout, _MERGING)
        self.close()
        return report

    def _merged_report(self) -> Report | None:
        """Report of all processes; None if some of them go on."""
        now = self._system.now
        deadline = now() + _MERGING
        while self._gates[1].wait(0) and now() < deadline:
            if not self._channel.wait(_RETRY):
                continue
            received = self._channel.receive()
            if received is None:
                return None
            if isinstance(received.message, Ended):
                return received.message.report
        return None

    def _execute(self, command: Commanded) -> None:
        match command:
            case Hold():
                self._channel.send(ChangeResult(offers=self.run.query_exports()))
            case Attend(number, state, source):
                if state is not None:
                    self.announce(state, source)
                self._attending = True
                self._channel.send(messages.Attending(number))
            case Resume(generation):
                self._attending, self.generation = False, generation
            case TakeDown(why, failed, role, pid):
                self.over, self.lost, self._lost_process = why or "it was released", failed, (role, pid or None)
            case Ended() | StartWorker():
                raise InternalError(f"a process was sent {type(command).__name__} before it left")
            case _:
                self._channel.send(answer(self.run, command))

    def require_complete(self) -> None:
        """Raise `ProcessLost` if another process has failed."""
        if self.lost:
            raise self.loss()


def joining_endpoint(held: Endpoint) -> Endpoint:
    """Return the endpoint at which processes join, beside that of the held layout."""
    return replace(held, file=held.file.removesuffix(".sock") + ".join.sock")


def joined(where: Endpoint, request: Callable[[], Join], timeout: float, check_signals: Callable[[], int]) -> Member:
    """Be a process of the layout that is coordinated at an endpoint; start its coordinator if there is none.

    Waits until all others have come. Raises `JoinRefused` and `ExchangeError`.
    """
    channel: Channel[StartWorker | NotJoined] = Channel(
        _coordinated(where, timeout, check_signals), (StartWorker, NotJoined)
    )
    with on_failure(channel.close):
        start, (read, write, last_read, last_write, *locks) = _admitted(
            channel, request(), timeout + _ANSWER, check_signals
        )
        gates = Gate(read, write), Gate(last_read, last_write)
        shared = [os.fdopen(each, "rb", buffering=0) for each in locks]
        with on_failure(gates[0].close), on_failure(gates[1].close):
            return Member(channel.expecting(get_args(messages.ToWorker)), gates, start, check_signals, locks=shared)


def _admitted(
    channel: Channel[StartWorker | NotJoined], request: Join, timeout: float, check_signals: Callable[[], int]
) -> tuple[StartWorker, Sequence[int]]:
    """Ask for a process of the layout. Return its start, the ends of its gates, and the lock of the layout.

    Raises `JoinRefused`.
    """
    channel.send(request)
    clock = RunningClock()
    while not channel.wait(_RETRY * 10):
        check_signals()
        if clock.time() > timeout:
            raise JoinRefused(f"the coordinator of the layout gave no answer within {timeout:g} s")
    received = channel.receive()
    match received and received.message:
        case StartWorker() as start if received:
            return start, [handle.fd for handle in received.handles if handle.fd is not None]
        case NotJoined(error, hint, exit_code):
            raise JoinRefused(error, hint=hint, exit_code=exit_code)
    raise JoinRefused("the coordinator of the layout ended before this process had joined")


def _coordinated(where: Endpoint, timeout: float, check_signals: Callable[[], int]) -> socket.socket:
    """Connect to the coordinator of a layout, and start one if there is none, also after the end of an earlier layout.

    Raises `JoinRefused`, and `ExchangeError` for a folder that cannot be used.
    """
    clock, start = RunningClock(), 0.0
    with ExitStack() as started:
        failures: list[IO[bytes]] = []
        while (sock := _connected(where)) is None:
            if clock.time() >= start and remove_stale(where):
                failures.append(started.enter_context(_start_coordinator(where, timeout)))
                start = clock.time() + _STARTING
            check_signals()
            for each in failures:
                if SYSTEM.wait((each,), 0.0) and (text := each.read(_LONGEST_FAILURE)):
                    message, hint, exit_code = json.loads(text)
                    raise JoinRefused(message, hint=hint, exit_code=exit_code)
            if clock.time() > timeout:
                raise _nobody(where, timeout)
            time.sleep(_RETRY)
    return sock


def _connected(where: Endpoint) -> socket.socket | None:
    with closing_fd(claimed_folder(where)) as folder:
        try:
            sock = connect_at(folder, where.file, 1.0)
        except PermissionError:
            raise JoinRefused(of_another_user(os.stat(where.file, dir_fd=folder).st_uid).error) from None
        except OSError:
            return None
    sock.setblocking(False)  # noqa: FBT003 the signature is the library's
    return sock


def _start_coordinator(where: Endpoint, timeout: float) -> IO[bytes]:
    """Start a process that coordinates the layout, unless another one does; it is no child of this process.

    Return a pipe from which the reason can be read if it cannot.
    """
    command = python_command(_COORDINATOR, detached=True)
    read, write = os.pipe2(os.O_CLOEXEC)
    failure = os.fdopen(read, "rb", buffering=0)
    arguments = where.folder, where.file, where.name or "", f"{timeout:g}", str(write)
    try:
        with on_failure(failure.close), closing_fd(write):
            spawn([*command, *arguments], new_session=True, descriptors=(write,)).wait()
    except OSError as error:
        raise JoinRefused(f"the coordinator of the layout cannot be started: {reason(error)}") from None
    return failure


def _nobody(where: Endpoint, timeout: float) -> JoinRefused:
    """Error for a layout that is complete, or whose coordinator cannot be reached."""
    with closing_fd(where.open_folder()) as folder:
        owner = lock_owner(folder, where.lock)
    if owner:
        message = f"the layout at {where.path!r} has all its processes, which {process_name(owner)} coordinates"
        return JoinRefused(message, hint=f"it did not end within {timeout:g} s; a new layout can begin only after that")
    message = f"the coordinator of the layout at {where.path!r} did not answer within {timeout:g} s"
    return JoinRefused(message, hint="give its start more time: timeout=")
