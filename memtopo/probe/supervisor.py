"""The trial supervisor: has children make the trials, each under a time limit, and one child import what they share.

A child that hangs is killed, and a child that died is replaced by one that makes the remaining trials. The messages
between the supervisor and the children are here, too.
"""

from __future__ import annotations

import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, MemtopoError, signal_status
from memtopo.common.processes import Broken, python_command
from memtopo.common.text import signal_name
from memtopo.driver.handles import Handle, close_handles
from memtopo.plans.progress import Progress
from memtopo.probe.trial_table import PlannedTrial
from memtopo.sharing.channel import Child, Received

SharedObject = Literal["chunk", "ipc", "ipc_event", "pool"]


class Start(Struct, frozen=True):
    """First message to a child: the trials to make, each with its number, or None for the importing child.

    `record` is the machine to simulate; None for real GPUs.
    """

    trials: tuple[tuple[int, PlannedTrial], ...] | None
    record: str | None


class ImportRequest(Struct, frozen=True):
    """Request to import what a trial shares, by the driver of one GPU: its handle is beside the message.

    `handle_type` is that of chunks and pools, `size` that of chunks, in bytes, and `pointer` that of an allocation of a
    pool, in hexadecimal digits.
    """

    what: SharedObject
    device: int
    handle_type: int = 0
    size: int = 0
    pointer: str = ""


class ImportAnswer(Struct, frozen=True):
    """Answer to an `ImportRequest`: whether the bytes were as expected, or the error and the call that returned it."""

    as_expected: bool = False
    error: str | None = None
    call: str | None = None


class Ready(Struct, frozen=True):
    """A child has its driver, after so many seconds."""

    seconds: float


class TrialBegun(Struct, frozen=True):
    """A child begins the trial of a number."""

    number: int


class TrialEnded(Struct, frozen=True):
    """Result of a trial: `works`, or the driver's error and the call that returned it, or `data` that was measured.

    `works` is None if the trial does not show it. `reason` explains an error that is not the driver's, or why there is
    no result. `contexts` are the seconds spent creating contexts, which are not in `seconds`.
    """

    number: int
    works: bool | None = None
    error: str | None = None
    call: str | None = None
    reason: str | None = None
    seconds: float = 0.0
    contexts: float = 0.0
    data: dict[str, Any] | None = None


class Finished(Struct, frozen=True):
    """All trials of a child are made; `leaked` counts what they did not release, by kind."""

    leaked: dict[str, int] = {}


ToChild = Start | ImportRequest | ImportAnswer
FromChild = Ready | TrialBegun | TrialEnded | ImportRequest | ImportAnswer | Finished | Broken


FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "ASSERT",
        "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED",
        "CONTAINED", "EXTERNAL_DEVICE", "DEVICE_UNAVAILABLE",
    )
)  # fmt: skip
"""Errors after which the process can use no GPU any more (fact 24)."""

VULKAN = "Vulkan"
"""Call of a `DriverError` raised for an error of Vulkan."""

TIMEOUT = "TIMEOUT"
"""Error of a trial that was killed."""

_NO_CONTEXT = "cuDevicePrimaryCtxRetain"
_INTERVAL = 0.2
_COMMAND = python_command("memtopo.probe.child:main")
_EXIT = 5.0
"""Seconds that a child has to end by itself once it has sent its last message."""


class ProbeStopped(MemtopoError):
    """The probe was interrupted."""

    exit_code = signal_status(signal.SIGINT)


class Limits(Struct, frozen=True):
    """Seconds for a trial, contexts included; for a request to the importing child; and for the start of a child."""

    trial: float = 20.0
    request: float = 10.0
    start: float = 60.0


class Findings(Struct):
    """Outcomes by number of the trial, processes that could not be ended, notes, and seconds of the slowest start."""

    outcomes: dict[int, TrialEnded] = {}
    left: list[str] = []
    notes: list[str] = []
    starting: float = 0.0


class _Lane(Struct):
    """Trials that one child after another makes in their order; `current` is the number of the one begun."""

    remaining: deque[tuple[int, PlannedTrial]]
    child: Child[FromChild] | None = None
    current: int | None = None
    deadline: float = 0.0
    error: str | None = None


class _Importer:
    """The importing child, which is replaced when it ends; it answers one request at a time."""

    def __init__(self, launch: Callable[[], Child[FromChild]], stop: Callable[[], int], limits: Limits) -> None:
        self._launch, self._stop, self._limits = launch, stop, limits
        self._ready = False
        self._child: Child[FromChild] | None = None

    def start(self) -> None:
        """Launch the child, if the system has room for one more process."""
        self._ready = False
        with suppress(OSError):
            self._child = self._launch()

    def answer(self, request: ImportRequest, handles: Sequence[Handle]) -> ImportAnswer:
        """Have the child answer a request; if it ends or takes too long, the answer is that. Raises `ProbeStopped`."""
        if self._child is None:
            self.start()
        if self._child is None:
            close_handles(handles)
            return ImportAnswer(error="EXIT")
        self._child.channel.send(request, handles)
        deadline = time.monotonic() + (self._limits.request if self._ready else self._limits.start)
        while time.monotonic() < deadline:
            if self._stop():
                self.end()
                raise ProbeStopped("interrupted")
            if self._child.channel.wait(_INTERVAL):
                received = _receive(self._child)
                match received and received.message:
                    case None:
                        return ImportAnswer(error=self.end(_EXIT))
                    case Ready():
                        self._ready, deadline = True, time.monotonic() + self._limits.request
                    case ImportAnswer() as answer:
                        if answer.error in FATAL:
                            self.end()
                        return answer
        self.end()
        return ImportAnswer(error=TIMEOUT)

    def end(self, seconds: float = 0.0) -> str:
        """End the child, if there is one, which has so many seconds to end by itself; return how it has ended."""
        child, self._child = self._child, None
        return _ending(child.end(seconds)) if child else ""


class Supervisor:
    """Runs lanes of trials side by side; `record` is the machine to simulate, `command` replaces memtopo's child.

    The hooks of `progress` get the trials as the steps of one `phase`.
    """

    def __init__(
        self,
        record: str | None,
        stop: Callable[[], int],
        limits: Limits,
        command: Sequence[str] = (),
        progress: Progress | None = None,
        phase: str = "try",
    ) -> None:
        self._progress, self._phase = progress or Progress(), phase
        self._record, self._stop, self._limits, self._command = record, stop, limits, command
        self._lanes: list[_Lane] = []
        self._importer = _Importer(lambda: _start_child(Start(None, record), command), stop, limits)
        self._findings = Findings()

    def run(self, lanes: Sequence[Sequence[tuple[int, PlannedTrial]]], *, importing: bool) -> Findings:
        """Make all trials. Raises `ProbeStopped`. No child is left in either case."""
        self._lanes = [_Lane(deque(planned)) for planned in lanes if planned]
        self._progress.phase(self._phase, sum(len(lane.remaining) for lane in self._lanes))
        try:
            if importing:
                self._importer.start()
            for lane in self._lanes:
                self._start(lane)
            counted = 0
            while any(lane.child for lane in self._lanes):
                if self._stop():
                    raise ProbeStopped("interrupted")
                self._receive_all()
                self._enforce_limits()
                self._progress.advance(len(self._findings.outcomes) - counted)
                counted = len(self._findings.outcomes)
        finally:
            for lane in self._lanes:
                self._end(lane)
            self._importer.end(_EXIT)
        return self._findings

    def _receive_all(self) -> None:
        """Take one message of each child that has sent one, and send what is queued."""
        children = {lane.child.channel.fileno(): (lane, lane.child) for lane in self._lanes if lane.child}
        poll = select.poll()
        for _, child in children.values():
            child.channel.flush()
            poll.register(child.channel, select.POLLIN)
        for fd, _ in poll.poll(_INTERVAL * 1000):
            self._receive(*children[fd])

    def _start(self, lane: _Lane) -> None:
        lane.current, lane.deadline = None, time.monotonic() + self._limits.start
        if not lane.remaining:
            return
        try:
            lane.child = _start_child(Start(tuple(lane.remaining), self._record), self._command)
        except OSError as error:
            self._give_up(lane, f"no process could be started for it: {error.strerror}")

    def _receive(self, lane: _Lane, child: Child[FromChild]) -> None:
        received = _receive(child)
        if received is None:
            self._died(lane, child)
            return
        match received.message:
            case TrialBegun(number):
                lane.current, lane.deadline = number, time.monotonic() + self._limits.trial
            case TrialEnded() as ended:
                self._trial_ended(lane, ended)
            case ImportRequest() as request:
                child.channel.send(self._importer.answer(request, received.handles))
                lane.deadline = time.monotonic() + self._limits.trial
            case Ready(seconds):
                self._findings.starting = max(self._findings.starting, seconds)
            case Broken(error):
                lane.error = error
            case Finished(leaked):
                counts = ", ".join(f"{count} {kind}" for kind, count in leaked.items() if count)
                self._findings.notes += [f"trials left {counts}, which ended with their process"] * bool(counts)
                self._end(lane, _EXIT)

    def _trial_ended(self, lane: _Lane, ended: TrialEnded) -> None:
        number, _ = lane.remaining.popleft()
        # A GPU that is full, or whose context cannot be created, may be able to do it at another time.
        unknown = ended.error == "CUDA_ERROR_OUT_OF_MEMORY" or ended.call == _NO_CONTEXT
        fails = ended.works is None and not unknown
        self._findings.outcomes[number] = replace(ended, works=False) if fails else ended
        lane.current, lane.deadline = None, time.monotonic() + self._limits.start

    def _died(self, lane: _Lane, child: Child[FromChild]) -> None:
        ending = _ending(child.end(_EXIT))
        lane.child = None
        if lane.current is not None:
            number, _ = lane.remaining.popleft()
            self._findings.outcomes[number] = TrialEnded(number, works=False, error=ending, reason=lane.error)
        elif ending != "EXIT 0" or lane.error:
            self._give_up(lane, f"its process did not start: {lane.error or ending}")
        self._start(lane)

    def _give_up(self, lane: _Lane, reason: str) -> None:
        while lane.remaining:
            number, _ = lane.remaining.popleft()
            self._findings.outcomes[number] = TrialEnded(number, reason=reason)

    def _end(self, lane: _Lane, seconds: float = 0.0) -> None:
        if lane.child is None:
            return
        lane.child.end(seconds)
        if pid := lane.child.stuck:
            self._findings.left.append(f"process {pid}, which does not end although it was killed")
        lane.child = None

    def _enforce_limits(self) -> None:
        """Kill children whose trial, start or import takes too long."""
        for lane in self._lanes:
            if not lane.child or time.monotonic() < lane.deadline:
                continue
            self._end(lane)
            if lane.current is None:
                self._give_up(lane, "its process did not start in time")
            else:
                number, _ = lane.remaining.popleft()
                self._findings.outcomes[number] = TrialEnded(number, works=False, error=TIMEOUT)
            self._start(lane)


def _receive(child: Child[FromChild]) -> Received[FromChild] | None:
    """Message of a child; None if it has ended."""
    try:
        return child.channel.receive()
    except BadPacket as error:
        return Received(Broken(error.message))


def _start_child(start: Start, command: Sequence[str]) -> Child[FromChild]:
    """Spawn a child; `command` replaces memtopo's own. Raises `OSError`."""
    return Child(command or _COMMAND, get_args(FromChild), start, stderr=subprocess.DEVNULL)


def _ending(status: int) -> str:
    """Error of a trial whose process has ended by itself, such as `SIGSEGV` or `EXIT 0`."""
    return signal_name(-status) if status < 0 else f"EXIT {status}"
