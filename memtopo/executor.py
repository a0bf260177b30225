"""Execution of a plan on a driver: build, check and teardown, with teardown after every failure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import MemtopoError, Stopped, message_of
from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.driver.recorder import CallContext
from memtopo.kinds.layout import LateError, Layout, current
from memtopo.kinds.runs import Progressed, StepRun, expanded, number_of_steps, parts_of_runs, reversed_items
from memtopo.kinds.step import Finding, Phase, Step
from memtopo.planner import Plan
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Leak, PhaseTime

T = TypeVar("T")

STRIDE = 256
"""Steps after which the progress hooks are called, and most steps of a run that are made together."""

_PACE = 0.1
"""Seconds between two calls of the progress hooks, if no step or part of a run takes longer."""


class StepFailed(Exception):
    """Failure of an action, mostly of a driver call; `step` is None if no step of the plan made it.

    `path` is the path of the spec entry concerned: the one at fault if the error has it, by default that of the step.
    """

    def __init__(self, step: Step | None, action: str, error: Exception, path: Path = ()) -> None:
        super().__init__(f"{action}: {message_of(error)}")
        self.step, self.action, self.error = step, action, error
        self.hint = error.hint if isinstance(error, MemtopoError) else None
        at_fault = error.path if isinstance(error, MemtopoError) else ()
        self.path = at_fault or (step.path if step else path)


def failed_step(step: Step, error: Exception, *, undo: bool = False) -> StepFailed:
    """Return the failure of a step that is done or undone."""
    return StepFailed(step, f"{'undo ' * undo}{step.verb} {step.describe().subject}", error)


@contextmanager
def failing(action: str) -> Iterator[None]:
    """Raise an error of the code inside as the failure of an action that no step makes."""
    try:
        yield
    except MemtopoError as error:
        raise StepFailed(None, action, error) from error


class StepCount(Struct, eq=False):
    """Number of steps of a timed phase, which the code inside may correct."""

    steps: int


class Execution:
    """One plan on one driver: `build`, `check`, `take_down`. The state is the layout and the list of steps done.

    `stop` is called between steps, and `Stopped` is raised unless it returns false or 0. Building and checking can be
    interrupted, the teardown cannot. A `context` has what the calls of each moment are made for.
    """

    def __init__(
        self,
        plan: Plan,
        driver: Driver,
        *,
        progress: Progress | None = None,
        stop: Callable[[], int] = lambda: False,
        origin: float | None = None,
        context: CallContext | None = None,
    ) -> None:
        """`origin` is the time of `time.perf_counter`, that of other processes too, when the run began; now if None."""
        self.plan, self.driver, self.stop, self.context = plan, driver, stop, context
        self._origin = time.perf_counter() if origin is None else origin
        self.progress = SafeProgress(progress or Progress())
        self.layout = Layout(plan.name)
        self.layout.stop, self.layout.extend, self.layout.advance = stop, self.progress.extend, self.progress.advance
        self.done: list[Step | StepRun] = []
        self.times: list[PhaseTime] = []
        self.baseline: ResourceSnapshot | None = None
        self.checked = 0
        self._suspended: list[Step] = []

    def build(self, *only: Phase) -> None:
        """Do every step, or the steps of some phases. Raises `StepFailed` or `Stopped`.

        The steps done before an error are undone by `take_down`.
        """
        if only and Phase.OPEN not in only:
            self._take_baseline()
        for phase, items in self.plan.phases:
            if only and phase not in only:
                continue
            if phase is not Phase.OPEN:
                self._take_baseline()
            before = len(self.done)
            with self.timed(phase, number_of_steps(items)) as count:
                try:
                    for item in self._parts(items):
                        self._build(item)
                finally:
                    count.steps = number_of_steps(self.done[before:])

    def check(self) -> Iterator[Finding]:
        """Compare every step with what the driver reports. Raises `StepFailed` or `Stopped`."""
        self.resume()
        self.checked = 0
        for item in self._parts(self.plan.items):
            self.raise_if_stopped()
            steps = item if isinstance(item, StepRun) else [item]
            step = steps[0]
            try:
                together = item.check(self.driver, self.layout) if isinstance(item, StepRun) else Progressed(0)
                yield from together.findings
                self.checked += together.number
                for step in steps[together.number :]:
                    if together.error:
                        raise together.error  # noqa: TRY301
                    self.raise_if_stopped()
                    yield from step.check(self.driver, self.layout)
                    self.checked += 1
            except Stopped:
                raise
            except Exception as error:
                raise StepFailed(step, f"check of {step.verb} {step.describe().subject}", error) from error

    def take_down(self, gates: TeardownGates | None = None) -> Teardown:
        """Undo every step that was done, in reverse order; a failed undo does not stop the others.

        The `gates` make every process release its imports before any process releases its exports.
        """
        gates = gates or TeardownGates()
        self.layout.ending = True
        teardown = Teardown(self)
        contexts, using, own = list[Step | StepRun](), list[Step | StepRun](), list[Step | StepRun]()
        for phase, items in groupby(reversed_items(self.done), attrgetter("phase")):
            (contexts if phase is Phase.OPEN else using if phase.uses_imports else own).extend(items)
        with self.timed("take down", number_of_steps(self.done)):
            try:
                self.resume()
            except StepFailed as failure:  # without a context, memory can be released but not measured
                teardown.failures.append(failure)
            self._undo(using, teardown)
            teardown.timed_out |= not gates.imports_released()
            self._undo(own, teardown)
            teardown.timed_out |= not gates.all_released()
            if self.baseline is not None:
                try:
                    teardown.after = self.snapshot("after taking down")
                except StepFailed as failure:
                    teardown.failures.append(failure)
            self._undo(contexts, teardown)
        self.done.clear()
        self.progress.end()
        return teardown

    def note(self, steps: Iterable[Step]) -> None:
        """Have a teardown undo some steps, too, which `act` may do; an undo without its `do` has no effect."""
        self.done = [*self.done, *steps]

    def adopt(self, plan: Plan) -> None:
        """Have another plan, whose steps are in effect now, and no others. No step of it is suspended."""
        self.plan = plan
        self.done = list(plan.items)

    def suspend(self, devices: Collection[int]) -> None:
        """Release the contexts of some GPUs, and what was loaded into them, until `resume`. Raises `StepFailed`.

        Chunks, mappings and their access stay (fact 73).
        """
        contexts = {("context", device) for device in devices}
        opened = (step for step in expanded(self.done) if step.phase is Phase.OPEN and step not in self._suspended)
        for step in reversed([each for each in opened if contexts.intersection((each.provides, *each.needs))]):
            # A refused call has released nothing.
            self.act(step, undo=True, complete=partial(self._suspended.append, step))

    def resume(self) -> None:
        """Retain the contexts again that `suspend` released. Raises `StepFailed`; what was done until then stays."""
        while self._suspended:
            self.act(self._suspended[-1], complete=self._suspended.pop)

    def act(
        self,
        step: Step,
        call: Callable[[Driver, Layout], None] | None = None,
        *,
        undo: bool = False,
        complete: Callable[[], object] = lambda: None,
    ) -> None:
        """Do or undo a step, by another `call` if there is one, and call `complete` once the effect is there.

        Raises `StepFailed`, and `Stopped` if a step that waits was asked to stop.
        """
        try:
            if not (undo or call):
                step.await_import(self.layout)  # before its call: requests of other processes are served meanwhile
            if self.context:  # not a `with` for each step: it takes as long as all else between two calls
                verb = (step.undoing.verb or step.verb) if undo else step.verb
                self.context.begin_step(verb, step.describe().subject, undo=undo)
            (call or (step.undo if undo else step.do))(self.driver, self.layout)
        except Exception as error:
            if isinstance(error, LateError):
                complete()
            elif isinstance(error, Stopped) and not undo:
                raise
            raise failed_step(step, error, undo=undo) from error
        finally:
            if self.context:
                self.context.leave()
        complete()

    def snapshot(self, when: str = "while held") -> ResourceSnapshot:
        """Count open file descriptors and free memory now. Raises `StepFailed`."""
        try:
            return ResourceSnapshot.take(self.driver, self.layout.contexts)
        except Exception as error:
            raise StepFailed(None, f"free memory {when}", error) from error

    def raise_if_stopped(self) -> None:
        """Raise `Stopped` if the run was asked to stop."""
        if self.stop():
            raise Stopped

    @contextmanager
    def timed(self, phase: str, steps: int = 0, *, announce: bool = True) -> Iterator[StepCount]:
        """Record the time of the code inside as a phase of the run.

        The phase has `steps` steps unless the code inside sets another count. A phase that is not announced is part of
        one that the progress hooks have already begun; its time is added to an earlier phase of the same name.
        """
        if announce:
            self.progress.phase(phase, steps)
        if self.context:
            self.context.enter(phase)
        count = StepCount(steps)
        start = time.perf_counter()
        try:
            yield count
        finally:
            end = time.perf_counter()
            found = PhaseTime(phase, count.steps, end - start, start - self._origin, end - self._origin)
            self._record(found, add=not announce)

    def _record(self, found: PhaseTime, *, add: bool) -> None:
        for index, each in enumerate(self.times):
            if each.phase == found.phase and add:
                self.times[index] = each.with_part(found)
                return
        self.times.append(found)

    def _take_baseline(self) -> None:
        if self.baseline is None:
            self.baseline = self.snapshot("before building")

    def _undo(self, items: Sequence[Step | StepRun], teardown: Teardown) -> None:
        for item in self._parts(items):
            teardown.undo(item)

    def _parts(self, items: Iterable[Step | StepRun]) -> Iterator[Step | StepRun]:
        """Single steps, and runs in parts, in order, reported as progress after they were made.

        Runs are expanded if each call is to have what it is made for.
        """
        parts = expanded(items) if self.context else parts_of_runs(items, STRIDE, _PACE)
        return reported(parts, self.progress.advance)

    def _build(self, item: Step | StepRun) -> None:
        # Recorded before `do`: an undo without its `do` has no effect, but a `do` without a record would leak.
        self.raise_if_stopped()
        self.done.append(item)
        if not isinstance(item, StepRun):
            self.act(item)
            return
        number, error, _ = item.do(self.driver, self.layout)
        if error:
            self.done[-1] = item[: number + 1]
            raise failed_step(item[number], error) from error


class TeardownGates:
    """Points of the teardown at which the processes of a layout wait for each other; a single process does not wait."""

    def imports_released(self) -> bool:
        """Wait until every process has released what it imported; return false on timeout."""
        return True

    def all_released(self) -> bool:
        """Wait until every process has released what it created; return false on timeout."""
        return True


def reported(
    items: Iterable[T], advance: Callable[[int], object], clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """Yield items, and report the number of steps that the caller has made: many fast ones together."""
    made, due = 0, clock() + _PACE
    for item in items:
        yield item
        made += len(item) if isinstance(item, StepRun) else 1
        if made >= STRIDE or clock() >= due:
            advance(made)
            made, due = 0, clock() + _PACE
    if made:
        advance(made)


class ResourceSnapshot(Struct, frozen=True):
    """Free bytes of each GPU that has a context, the number of open file descriptors, and the files behind them."""

    free: Mapping[int, int]
    fds: int
    files: tuple[str, ...] = ()

    @classmethod
    def take(cls, driver: Driver, contexts: Mapping[int, int]) -> ResourceSnapshot:
        """Measure both now; `contexts` are by GPU. Raises `DriverError`."""
        free: dict[int, int] = {}
        for device, context in contexts.items():
            with current(driver, context):
                free[device] = driver.mem_get_info()[0]
        files = [_file(fd) for fd in os.listdir("/proc/self/fd")]
        # The driver has such a file open for the interprocess events of a context, which keeps it (fact 49).
        counted = tuple(each for each in files if not each.startswith("/dev/shm/cuda.shm."))  # noqa: S108
        return cls(free, len(counted), counted)


def _file(fd: str) -> str:
    """Name of an open file; empty for the folder that was listed, which is closed."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
    except OSError:
        return ""


class Teardown:
    """Result of a teardown: failed undos, and the resources that they block."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._failed: list[tuple[Leak, list[str]]] = []
        """Leaks of failed undos, with the names of the resources that each blocks."""
        self._blocked: dict[str | None, list[str]] = {}
        self.failures: list[StepFailed] = []
        self.timed_out = False
        """True if another process did not reach a gate in time, and may have used released objects."""
        self.after: ResourceSnapshot | None = None

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """Leaks by failed undo, each with the names of the resources that it blocks."""
        return tuple(replace(leak, stays=tuple(stays)) for leak, stays in self._failed)

    def undo(self, item: Step | StepRun) -> None:
        """Undo a step, or those of a run in order, except the ones that a failed undo blocks."""
        blocked = self._blocked
        while isinstance(item, StepRun) and item and not blocked:
            number, error, _ = item.undo(self._execution.driver, self._execution.layout)
            if error:
                self._record(item[number], error)
            item = item[number + 1 :]
        for step in expanded([item]):
            if blocked and (name := step.leak_name()) in blocked:
                blocked[name].append(str(name))
                continue
            try:
                self._execution.act(step, undo=True)
            except StepFailed as failed:
                self._record(step, failed.error)

    def _record(self, step: Step, error: Exception) -> None:
        name = step.leak_name()
        if name is None or isinstance(error, LateError):
            self.failures.append(StepFailed(step, f"{step.verb} {step.describe().subject}", error))
            return
        stays: list[str] = []
        self._failed.append((Leak(name, str(error), path=step.path), stays))
        for blocked in step.blocks():
            self._blocked.setdefault(blocked, stays)
