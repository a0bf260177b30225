"""The coordinator: starts the workers, has them go through the phases together, and makes one report of theirs.

It makes no driver call that lays out memory. Whatever becomes of any of the processes, the others are told, and all of
them take down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from memtopo import machine as machines
from memtopo.common.errors import InternalError, MemtopoError
from memtopo.executor import Careful
from memtopo.kinds.steps import Phase
from memtopo.machine import Machine, target
from memtopo.plans.report import Checks, Failure, PhaseTime, Progress, Report
from memtopo.run.apply import Job
from memtopo.run.processes.gates import Gate
from memtopo.run.processes.messages import Briefing
from memtopo.run.processes.reports import checks_of, merged
from memtopo.run.processes.routing import Router
from memtopo.run.processes.worker_process import Member, Wait, launch
from memtopo.run.proving import UNSAFE
from memtopo.sharing import Handle, Offer, Secret
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.limits import room

TIMEOUT = 30.0
"""Seconds of silence after which a process counts as dead."""

STARTUP = 60.0
"""Seconds that a worker has for its imports and the driver's start."""

SPARE = 3.0
"""Seconds beyond the timeout that teardown has before a worker that hangs is killed."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What several processes build: the whole layout as a job, its text, and the machine.

    `timeout` is how many seconds a process may be silent. `sockets` are those of holders outside, by name, and
    `allow_uids` users other than this one that are trusted with it. `worker` is the command that starts a worker, for
    those who want another one than memtopo's own.
    """

    job: Job
    text: str
    machine: Machine
    timeout: float = TIMEOUT
    sockets: Mapping[str, str] = field(default_factory=dict)
    allow_uids: tuple[int, ...] = ()
    worker: Sequence[str] = ()


class _Over(Exception):
    """The run cannot go on: somebody failed, died, or was interrupted."""


def apply(
    ensemble: Ensemble,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    held: Callable[[Coordinator], list[str]] | None = None,
) -> Report:
    """Build in all processes, check, and take down; `held` is called with what was built and found as declared.

    `stop` answers the number of the signal that asks to stop, or 0. Never raises for what goes wrong on the way.
    """
    with Coordinator(ensemble, Careful(progress or Progress()), stop) as coordinator:
        try:
            coordinator.build()
            if held and coordinator.as_declared:
                coordinator.hold(held)
        except _Over:
            pass
        except (MemtopoError, OSError, ValueError) as error:
            coordinator.failure = error
        finally:
            coordinator.take_down()
        return coordinator.report()


class Coordinator:
    """All the workers of one run."""

    def __init__(self, ensemble: Ensemble, progress: Progress, stop: Callable[[], int]) -> None:
        self.ensemble, self._progress, self._stop = ensemble, progress, stop
        self.members: dict[str, Member] = {}
        self.times: list[PhaseTime] = []
        self.interrupted = 0
        self.notes: list[str] = []
        self.failure: Exception | None = None
        self._first: Member | None = None
        self._router = Router(self.members)

    def __enter__(self) -> Self:
        room(len(self.ensemble.job.geometry.processes) * (IN_FLIGHT + 2))
        gates = [Gate.pipe() for _ in range(2)]
        ends = tuple(end for gate in gates for end in gate)
        try:
            for label, geometry in self.ensemble.job.geometry.processes.items():
                visible = tuple(place.id for place in geometry.visible)
                self.members[label] = launch(label, ends, self._environment(visible), self.ensemble.worker)
                self.members[label].brief(self._briefing(label, visible))
        except BaseException:
            self._close()
            raise
        finally:
            for end in ends:
                os.close(end)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def as_declared(self) -> bool:
        """Whether no process found a difference."""
        return all(member.as_declared for member in self.members.values())

    def build(self) -> None:
        """Have all processes build, check and prove, phase by phase."""
        job = self.ensemble.job
        with self._timed("start", len(self.members)):
            self._await(Wait.READY, STARTUP)
        for phase in Phase:
            steps = sum(
                len(steps) for plan in job.plan.processes.values() for each, steps in plan.phases if each is phase
            )
            if steps or phase is Phase.RESERVE:
                with self._timed(phase, steps):
                    self._all("build", phase=str(phase))
        with self._timed("check", sum(len(plan.steps) for plan in job.plan.processes.values())):
            self._all("check")
        self._prove()

    def _prove(self) -> None:
        members = self.members.values()
        volume = sum(member.volume for member in members)
        full = self.ensemble.job.check == "full"
        with self._timed("prove", len(members), volume):
            if full and not all(member.safe for member in members):
                self._all("unproven", why=UNSAFE)
                return
            for turn in range(max(member.turns for member in members)):
                self._all("write", turn=turn)
                if full and turn == 0:
                    self._all("forbid")
                self._all("read", turn=turn)

    def hold(self, held: Callable[[Coordinator], list[str]]) -> None:
        """Have all processes stay as they are for as long as that takes."""
        self._all("hold")
        self.notes += held(self)
        if self._first:
            raise _Over

    def watch(self) -> int:
        """While held: the signal that asks to stop, or -1 where a process has ended; else 0."""
        self._turn(0.0)
        return -1 if self._first else self._stop()

    def take_down(self) -> None:
        """Have all processes take down, and collect their reports; who hangs is killed."""
        with self._timed("take down", len(self.members)):
            for member in self.members.values():
                member.tell_down()
            until = time.monotonic() + 2 * self.ensemble.timeout + SPARE
            while any(not member.gone for member in self.members.values()):
                self._turn(0.1)
                late = time.monotonic() > until
                for member in self.members.values():
                    if not member.gone and (late or member.silent(self.ensemble.timeout + SPARE)):
                        member.kill("did not take down in time")
        self._progress.end()

    def report(self) -> Report:
        """One report of all of them."""
        members = {member.label: member for member in (self._first, *self.members.values()) if member}
        found = merged(self.ensemble.job, members, self.times, self.interrupted)
        if self.failure and found.outcome == "ok":
            told = str(self.failure) or type(self.failure).__name__
            failure = Failure("work with the processes", told, hint=getattr(self.failure, "hint", None))
            found = replace(found, outcome="failed", exit_code=getattr(self.failure, "exit_code", 4), failure=failure)
        return replace(found, notes=(*self.notes, *found.notes))

    def look(self) -> Checks:
        """Have every process ask its driver whether everything is as declared. Raises `MemtopoError`."""
        for member in self.members.values():
            member.tell("look")
        while any(member.waits_for(Wait.DONE) for member in self.members.values()):
            self._wait_here(self.ensemble.timeout)
        if told := [f"{label}: {each.unlooked}" for label, each in self.members.items() if each.unlooked]:
            raise MemtopoError("; ".join(told))
        found = {label: member.checks for label, member in self.members.items() if member.checks}
        if len(found) < len(self.members):
            raise MemtopoError("a process has ended, and cannot be asked")
        return checks_of(found)

    def ask(self, label: str, export: str, first: int, count: int) -> Any:
        """Handles of one process's export, for this process. Raises `MemtopoError`."""
        return self._router.ask(label, export, first, count, lambda: self._wait_here(self.ensemble.timeout))

    def _all(self, do: str, **fields: Any) -> None:
        for member in self.members.values():
            member.tell(do, **fields)
        self._await(Wait.DONE, self.ensemble.timeout)

    def _await(self, what: Wait, patience: float) -> None:
        """Wait until every process has done what it was told; `patience` is how long one may be silent."""
        while any(member.waits_for(what) for member in self.members.values()):
            self._turn(0.1)
            if signal := self._stop():
                self.interrupted = signal
                raise _Over
            self._mind(patience)
            if self._first:
                raise _Over

    def _wait_here(self, patience: float) -> None:
        """Wait a little for an answer on somebody's behalf, who is told where there will be none."""
        self._turn(0.1)
        self._mind(patience)
        if self._stop():
            raise MemtopoError("the layout is about to be taken down")

    def _mind(self, patience: float) -> None:
        """Kill whoever has something to do and was silent for so long."""
        for member in self.members.values():
            if member.busy and member.silent(patience):
                member.kill(f"was silent for {patience:g} s")
                self._note(member)

    def _turn(self, seconds: float) -> None:
        """Hear what the workers say, route what they ask of one another, and show that this process is alive."""
        for member, packet in self._router.heard(seconds):
            self._progress.advance(member.take(packet))
            self._note(member)
        for member in self.members.values():
            member.reassure(self.ensemble.timeout / 4)

    def _note(self, member: Member) -> None:
        """Remember who was the first that could not go on: what befell the others may well follow from it."""
        if member.over and self._first is None:
            self._first = member

    @contextmanager
    def _timed(self, phase: str, steps: int, volume: int = 0) -> Iterator[None]:
        if volume:
            self._progress.volume(phase, volume)
        else:
            self._progress.phase(phase, steps)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.times.append(PhaseTime(phase, steps, time.perf_counter() - start))

    def _environment(self, visible: Sequence[int]) -> dict[str, str]:
        """What a worker's environment differs in: real GPUs are shown to it by UUID, since ordinals are a process's."""
        if not visible or self.ensemble.job.machine.simulated:
            return {}
        uuids = [self.ensemble.machine.devices[ordinal].uuid for ordinal in visible]
        if None in uuids:
            raise InternalError("a GPU that a process is to see has no UUID")
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, uuids))}

    def _briefing(self, label: str, visible: tuple[int, ...]) -> Briefing:
        line = self.ensemble.job.machine
        facts = machines.dump(self.ensemble.machine)
        spec = self.ensemble.job.spec or "<spec>"
        ensemble = self.ensemble
        return Briefing(
            label, spec, ensemble.text, facts, line.name, line.simulated, visible, ensemble.timeout,
            tuple(target.uuids(ensemble.machine)), dict(ensemble.sockets), ensemble.allow_uids, ensemble.job.check,
            ensemble.job.seed,
        )  # fmt: skip

    def _close(self) -> None:
        for member in self.members.values():
            member.end()


class ProcessShelf:
    """Each export under its process's label: `server.weights`, `pe.3.heap`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._owners = {
            f"{label}.{offer.name}": (label, offer)
            for label, member in coordinator.members.items()
            for offer in member.offers
        }

    def offers(self) -> Sequence[Offer]:
        return [replace(offer, name=name) for name, (_, offer) in self._owners.items()]

    def handle(self, export: str, index: int) -> Handle:
        label, offer = self._owners[export]
        packet = self._coordinator.ask(label, offer.name, index, 1)
        if offer.descriptors:
            return Handle(fd=packet.fds.pop())
        return Handle(secret=Secret(bytes.fromhex(packet.message["secrets"][0])))

    def check(self) -> Checks:
        return self._coordinator.look()
