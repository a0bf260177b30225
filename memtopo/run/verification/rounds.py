"""The proof of one process's part of a run, turn by turn: what is written, what is forbidden, and what is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from memtopo.common.errors import InternalError
from memtopo.diagnostics.model import Path
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import Attribute, DriverError, Grant, LocationKind
from memtopo.executor import Execution, Meter, StepFailed
from memtopo.geometry import Geometry
from memtopo.machine import Machine
from memtopo.plans.report import Check, Finding, Rate
from memtopo.run.contents import Contents, contents, events
from memtopo.run.findings import Counter
from memtopo.run.verification import replicas
from memtopo.run.verification.external import Synchronizing, Unsignalled
from memtopo.run.verification.full import Whole
from memtopo.run.verification.host_access import Sides
from memtopo.run.verification.isolation import refusals
from memtopo.run.verification.samples import Samples
from memtopo.run.verification.verifier import Prover, Scene

FORBIDDEN = "forbidden, on a replica"

UNSAFE = "an access is not as declared, and a kernel that goes where it may not ends the process"
"""Why nothing is proven by kernels then (fact 24)."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be proven, of the process with this label; of a run of several, `siblings` has all of them.

    `facts` are the machine's, on which replicas are built; without them there are none.
    """

    process: str
    geometry: Geometry
    siblings: Mapping[str, Geometry] | None
    check: Check
    seed: int
    simulated: bool
    facts: Machine | None


class Proving:
    """Goes through the turns, and counts what is found. Raises `StepFailed` or `Stopped`."""

    def __init__(self, task: Task, driver: KernelDriver, execution: Execution, counter: Counter) -> None:
        self._task, self._driver, self._execution, self._counter = task, driver, execution, counter

    @property
    def safe(self) -> bool:
        """Whether every access is as declared, so that no kernel goes where it may not and ends the process."""
        return not self._counter.differs("access")

    @property
    def turns(self) -> int:
        """How many turns there are; the same in every process of the run."""
        return len(self._turns)

    @property
    def volume(self) -> int:
        """How many bytes this process fills and verifies."""
        return sum(prover.volume for prover in self._provers)

    @property
    def rates(self) -> tuple[Rate, ...]:
        """How fast it went."""
        return tuple(rate for prover in self._provers for rate in prover.rates())

    def write(self, turn: int) -> None:
        """Write what is this process's to write in a turn."""
        if turn == 0 and self.volume:
            self._execution.progress.volume("prove", self.volume)
        if not self._provable(turn):
            return
        prover, own = self._turns[turn]
        if prover.verbs[0]:
            with self._guarded(prover, own), self._timed(prover.verbs[0]) as meter:
                meter.steps = prover.write(own)

    def read(self, turn: int) -> None:
        """Read what everybody wrote in that turn."""
        if not self._provable(turn):
            return
        prover, own = self._turns[turn]
        with self._guarded(prover, own), self._timed(prover.verbs[1], prover.expected(own)):
            self._counter.take(prover.read(own))
        if own == 0:
            for count, why in prover.unseen():
                self._counter.not_checked(prover.aspect, count, why)

    def forbid(self) -> None:
        """Try what is forbidden: what the driver refuses on the real mappings, what ends a process on replicas.

        It stands between the first fill and its verification, which then shows that the layout is unharmed.
        """
        if self._task.check != "full" or not self.safe:
            return
        tries = self._replicas()
        with self._execution.timed("forbid", len(tries), told=False):
            self._counter.take(refusals(self._scene))
            if self._task.facts is None:
                self._counter.not_checked(FORBIDDEN, len(tries), "no process was to be started")
            else:
                self._try(tries, self._task.facts)
        self._not_tried()

    def unproven(self, why: str) -> None:
        """Note that no byte is proven, and why not."""
        for prover in self._provers:
            if count := prover.expected(0):
                self._counter.not_checked(prover.aspect, count, why)

    @cached_property
    def _turns(self) -> list[tuple[Prover, int]]:
        """Every turn with the prover whose it is, and which of its turns."""
        return [(prover, turn) for prover in self._provers for turn in range(prover.turns)]

    @cached_property
    def _provers(self) -> list[Prover]:
        """Which ways to prove there are, the same in all processes."""
        task, scene = self._task, self._scene
        if task.check == "none":
            return []
        found: list[Prover] = [Whole(scene) if task.check == "full" else Samples(scene)]
        shared = (
            grant for seen in scene.seen.values() for each in seen for _, _, grants in each.seen_at for grant in grants
        )
        if any(grant.location.kind is not LocationKind.GPU for grant in shared):
            found.append(Sides(scene, kernels=task.check == "full"))
        if any(member.foreign for member in (task.siblings or {"": task.geometry}).values()):
            found.append(Synchronizing(task.geometry, self._driver, self._execution.layout, self._breathe))
        return found

    @cached_property
    def _scene(self) -> Scene:
        """What is proven with; each process of the run is known by its label."""
        task = self._task
        members = task.siblings or {task.process: task.geometry}
        seen = {label: contents(each, label, task.siblings) for label, each in members.items()}
        seen[task.process] = [self._usable(each) for each in seen[task.process]]
        return Scene(
            process=task.process,
            seen=seen,
            events={label: events(each, label, task.siblings) for label, each in members.items()},
            driver=self._driver,
            layout=self._execution.layout,
            stop=self._execution.stop_here,
            advance=self._execution.progress.advance,
            seed=task.seed,
            simulated=task.simulated,
        )

    def _replicas(self) -> dict[replicas.Replica, Path]:
        """What this process is to try: in a run of several, what none before it tries."""
        tries = replicas.replicas(self._task.geometry)
        for label, member in (self._task.siblings or {}).items():
            if label == self._task.process:
                break
            for tried in replicas.replicas(member):
                tries.pop(tried, None)
        return tries

    def _try(self, tries: dict[replicas.Replica, Path], facts: Machine) -> None:
        visible = tuple(place.id for place in self._task.geometry.visible)
        place = replicas.Place(facts, self._task.simulated, visible)
        for replica, tried in replicas.try_all(tries, place, self._breathe):
            if tried.why_not:
                self._counter.not_checked(FORBIDDEN, 1, tried.why_not)
            else:
                finding = Finding(FORBIDDEN, replica.subject, replicas.DIED, tried.seen, tries[replica])
                self._counter.take(iter([finding]))

    def _breathe(self) -> None:
        self._execution.progress.advance(0)
        self._execution.stop_here()

    def _not_tried(self) -> None:
        """Count what has no replica: memory of the host, of somebody else, or of a GPU that is not seen here."""
        mapped = [each for each in self._scene.mine if each.seen_at]
        gpus = [each for each in mapped if each.ours and each.location.kind is LocationKind.GPU]
        without = {
            "host memory has no replica": sum(1 for each in mapped if each.ours) - len(gpus),
            "memory from outside has no replica": sum(1 for each in mapped if not each.ours),
            "its GPU is not seen here": sum(
                1 for each in gpus if not replicas.is_seen(self._task.geometry, each.location)
            ),
        }
        for why, count in without.items():
            if count:
                self._counter.not_checked(FORBIDDEN, count, why)

    def _usable(self, each: Contents) -> Contents:
        """Managed memory of the host or of one stream, without the GPUs that cannot use it while the CPU may."""
        run = self._task.geometry.managed.get(each.identity.label)
        if run is None or run.attach == "global" or not each.ours or each.chunk != run.name:
            return each
        ((label, at, grants),) = each.seen_at
        able = tuple(grant for grant in grants if grant.location.kind is not LocationKind.GPU or self._shares(grant))
        return replace(each, seen_at=((label, at, able),))

    def _shares(self, grant: Grant) -> bool:
        """Whether a GPU and the CPU may use managed memory at once; where nothing is known of it, it is tried."""
        facts = self._task.facts
        return not facts or bool(
            facts.devices[grant.location.id].attributes.get(Attribute.CONCURRENT_MANAGED_ACCESS.name)
        )

    def _provable(self, turn: int) -> bool:
        if not self._provers:
            raise InternalError("a run proves what it is not to check")
        if self._task.check != "full" or self.safe:
            return True
        if turn == 0 and not any(self._counter.missed(prover.aspect) for prover in self._provers):
            self.unproven(UNSAFE)
        return False

    def _timed(self, verb: str, steps: int = 0) -> AbstractContextManager[Meter]:
        return self._execution.timed(verb, steps, told=not self.volume)

    @contextmanager
    def _guarded(self, prover: Prover, turn: int) -> Iterator[None]:
        before = self._counter.looked_at(prover.aspect)
        try:
            yield
        except Unsignalled as error:
            self._unlooked(prover, turn, before, error.message)
            raise StepFailed(None, prover.doing, error, error.path) from error
        except DriverError as error:
            self._unlooked(prover, turn, before, f"the driver said {error.message}")
            raise StepFailed(None, prover.doing, error) from error

    def _unlooked(self, prover: Prover, turn: int, before: int, why: str) -> None:
        unseen = prover.expected(turn) - (self._counter.looked_at(prover.aspect) - before)
        self._counter.not_checked(prover.aspect, max(0, unseen), why)
