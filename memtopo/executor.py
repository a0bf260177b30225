"""Makes the calls of a plan, looks at what came of them, and takes everything down again, whatever happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as File

from memtopo.common.collector import collector_paused
from memtopo.diagnostics.model import Path
from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.steps import Phase, Step
from memtopo.planner import Plan
from memtopo.plans.report import Finding, Leak, PhaseTime, Progress

_BORROWING = (Phase.IMPORT, Phase.MAP, Phase.GRANT, Phase.SETTLE)
"""The phases after which a process may use what others created."""

STRIDE = 256
"""Steps between two calls of the progress hooks."""


class StepFailed(Exception):
    """Something failed, mostly a driver call; `step` is None where it belongs to no step.

    `path` is the spec's entry that it is about.
    """

    def __init__(self, step: Step | None, doing: str, error: Exception, path: Path = ()) -> None:
        super().__init__(f"{doing}: {error}")
        self.step, self.doing, self.error = step, doing, error
        self.path = step.path if step else path


class Stopped(Exception):
    """Somebody asked to stop."""


@dataclass(slots=True)
class Meter:
    """How many steps a phase really came to."""

    steps: int


class Execution:
    """One plan on one driver: `build`, `check`, `take_down`. State is the layout and the list of steps done.

    `stop` is asked between steps; where it answers true, `Stopped` is raised. Only building and checking can be
    interrupted, never the teardown.
    """

    def __init__(
        self,
        plan: Plan,
        driver: Driver,
        *,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan, self.driver, self.stop = plan, driver, stop
        self.progress = Careful(progress or Progress())
        self.layout = Layout()
        self.done: list[Step] = []
        self.times: list[PhaseTime] = []
        self.before: Observation | None = None
        self.checked = 0

    def build(self, *only: Phase) -> None:
        """Do every step, or those of some phases. Raises `StepFailed` or `Stopped`.

        What was done until then waits for `take_down`.
        """
        if only and Phase.OPEN not in only:
            self._observe_before()
        for phase, steps in self.plan.phases:
            if only and phase not in only:
                continue
            if phase is not Phase.OPEN:
                self._observe_before()
            before = len(self.done)
            with self.timed(phase, len(steps)) as meter, collector_paused():
                try:
                    self._build(steps)
                finally:
                    meter.steps = len(self.done) - before

    def check(self) -> Iterator[Finding]:
        """What the driver says of every step, wanted and seen. Raises `StepFailed` or `Stopped`."""
        self.checked = 0
        for step in self.plan.steps:
            self.stop_here()
            try:
                yield from step.check(self.driver, self.layout)
            except Exception as error:
                raise StepFailed(step, f"check of {step.verb} {step.describe().subject}", error) from error
            self.checked += 1
            if self.checked % STRIDE == 0:
                self.progress.advance(STRIDE)

    def take_down(self, peers: Peers | None = None) -> Teardown:
        """Undo every step that was done, in reverse order; a failed undo does not stop the others.

        What was imported is given back before any of the `peers` gives back what others may have imported.
        """
        peers = peers or Peers()
        teardown = Teardown(self.driver, self.layout)
        steps = list(reversed(self.done))
        opened = [step for step in steps if step.phase is Phase.OPEN]
        borrowed = sum(1 for step in steps if step.phase in _BORROWING)
        with self.timed("take down", len(steps)), collector_paused():
            for count, step in enumerate(steps[: len(steps) - len(opened)]):
                if count == borrowed:
                    teardown.missed |= not peers.unused()
                teardown.undo(step)
                if count % STRIDE == STRIDE - 1:
                    self.progress.advance(STRIDE)
            if borrowed == len(steps) - len(opened):
                teardown.missed |= not peers.unused()
            teardown.missed |= not peers.emptied()
            if self.before is not None:
                teardown.observe()
            for step in opened:
                teardown.undo(step)
        self.done.clear()
        self.progress.end()
        return teardown

    def observe(self, when: str = "while held") -> Observation:
        """File descriptors and free memory as they are now. Raises `StepFailed`."""
        try:
            return Observation(self.driver, self.layout)
        except Exception as error:
            raise StepFailed(None, f"free memory {when}", error) from error

    def stop_here(self) -> None:
        """Raise `Stopped` where somebody asked to stop."""
        if self.stop():
            raise Stopped

    @contextmanager
    def timed(self, phase: str, steps: int = 0, *, told: bool = True) -> Iterator[Meter]:
        """Count what happens inside as one phase of the run, of `steps` steps unless the meter says otherwise.

        Where progress is not told of it, it is a part of something that it knows; parts of one name are one phase.
        """
        if told:
            self.progress.phase(phase, steps)
        meter = Meter(steps)
        start = time.perf_counter()
        try:
            yield meter
        finally:
            self._note(PhaseTime(phase, meter.steps, time.perf_counter() - start), alone=told)

    def _note(self, took: PhaseTime, *, alone: bool) -> None:
        for index, each in enumerate(self.times):
            if each.phase == took.phase and not alone:
                self.times[index] = PhaseTime(took.phase, each.steps + took.steps, each.seconds + took.seconds)
                return
        self.times.append(took)

    def _observe_before(self) -> None:
        if self.before is None:
            self.before = self.observe("before building")

    def _build(self, steps: tuple[Step, ...]) -> None:
        driver, layout, done, stop = self.driver, self.layout, self.done, self.stop
        for count, step in enumerate(steps, 1):
            if stop():
                raise Stopped
            # Noted first: an undo without its do changes nothing, but a do that was not noted would stay for ever.
            done.append(step)
            try:
                step.do(driver, layout)
            except Stopped:
                raise
            except Exception as error:
                raise StepFailed(step, f"{step.verb} {step.describe().subject}", error) from error
            if count % STRIDE == 0:
                self.progress.advance(STRIDE)


class Peers:
    """Other processes that take down with this one; here there are none."""

    def unused(self) -> bool:
        """Wait until no other uses what this one created; false where one was still there when the time was over."""
        return True

    def emptied(self) -> bool:
        """Wait until all others have given back what they created; likewise."""
        return True


class Careful(Progress):
    """Progress that cannot hurt the run: hooks that raise are not called again."""

    def __init__(self, hooks: Progress) -> None:
        self._hooks = hooks

    def phase(self, name: str, steps: int) -> None:
        self._call(lambda: self._hooks.phase(name, steps))

    def volume(self, name: str, size: int) -> None:
        self._call(lambda: self._hooks.volume(name, size))

    def advance(self, steps: int) -> None:
        self._call(lambda: self._hooks.advance(steps))

    def end(self) -> None:
        self._call(self._hooks.end)

    def _call(self, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception:  # noqa: BLE001 somebody else's code, in the middle of a teardown perhaps
            self._hooks = Progress()


class Observation:
    """Open file descriptors, and free bytes of each GPU that has a context."""

    def __init__(self, driver: Driver, layout: Layout) -> None:
        self.free: dict[int, int] = {}
        for device, context in layout.contexts.items():
            with current(driver, context):
                self.free[device] = driver.mem_get_info()[0]
        self.fds = sum(1 for fd in os.listdir("/proc/self/fd") if not _of_a_context(fd))


def _of_a_context(fd: str) -> bool:
    """Whether the driver opened this file for a context's interprocess events; it stays as long as the context."""
    try:
        return str(File("/proc/self/fd", fd).readlink()).startswith("/dev/shm/cuda.shm.")  # noqa: S108 fact 49
    except OSError:
        return False


class Teardown:
    """What became of the obligations: what could not be undone, and what had to stay because of it."""

    def __init__(self, driver: Driver, layout: Layout) -> None:
        self._driver, self._layout = driver, layout
        self._held: dict[str | None, int] = {}
        self._leaks: list[tuple[Step, str, Exception, list[str]]] = []
        self.failures: list[StepFailed] = []
        self.missed = False
        """Whether a peer was not through in time, so that it may still have used what was given back."""
        self.after: Observation | None = None

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """Each thing that stayed by its own fault, with those that had to stay because of it."""
        return tuple(Leak(thing, str(error), tuple(stays), step.path) for step, thing, error, stays in self._leaks)

    def undo(self, step: Step) -> None:
        """Undo one step, unless something that could not be undone stands in it."""
        if self._held and (thing := step.leak_name()) in self._held:
            self._leaks[self._held[thing]][3].append(str(thing))
            return
        try:
            step.undo(self._driver, self._layout)
        except Exception as error:  # noqa: BLE001 whatever it is, the other steps are still to be undone
            self._keep(step, step.leak_name(), error)

    def observe(self) -> None:
        """Look at file descriptors and free memory once more, while the contexts still exist."""
        try:
            self.after = Observation(self._driver, self._layout)
        except Exception as error:  # noqa: BLE001 likewise
            self.failures.append(StepFailed(None, "free memory after taking down", error))

    def _keep(self, step: Step, thing: str | None, error: Exception) -> None:
        if thing is None:
            self.failures.append(StepFailed(step, f"{step.verb} {step.describe().subject}", error))
            return
        self._leaks.append((step, thing, error, []))
        for held in step.blocks():
            self._held.setdefault(held, len(self._leaks) - 1)
