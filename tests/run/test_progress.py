"""Progress that runs report: every phase of steps ends with all of its steps done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.executor import STRIDE, reported
from memtopo.kinds.runs import StepRun, parts_of_runs
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check
from memtopo.run import apply, processes
from memtopo.run.holder import HeldLayout
from memtopo.session.composition import HoldResult, Revision
from tests.helpers.conducted import Conducted
from tests.helpers.machines import invented
from tests.helpers.specs import ensemble, plan_of, run_request

MACHINE = invented(2)
PAGES = 3 * STRIDE + 7
LARGE = f"""
ranges: {{kv: {{size: {2 * PAGES}MiB}}}}
chunks: {{page: {{location: gpu0, size: 2MiB, count: {PAGES}}}}}
map: {{kv: page}}
access: {{kv: {{gpu0: rw, gpu1: r}}}}
"""
SEVERAL = f"""
processes:
  server:
    ranges: {{kv: {{size: {2 * PAGES}MiB}}}}
    chunks: {{page: {{location: gpu0, size: 2MiB, count: {PAGES}, handles: fd}}}}
    map: {{kv: page}}
    access: {{kv: {{gpu0: rw}}}}
    exports: {{page: {{chunk: page, via: fd}}}}
  reader:
    count: 2
    ranges: {{kv: {{size: {2 * PAGES}MiB}}}}
    imports: {{page: {{from: server.page}}}}
    map: {{kv: page}}
    access: {{kv: {{gpu1: rw}}}}
"""


@dataclass
class Phase:
    """A phase as its hooks report it; `longest` is the largest number of steps that were reported at once."""

    name: str
    steps: int
    in_bytes: bool = False
    done: int = 0
    longest: int = 0


@dataclass
class Recorder(Progress):
    """Keeps what the hooks report."""

    phases: list[Phase] = field(default_factory=list)

    def phase(self, name: str, steps: int, _processes: object = None) -> None:
        self.phases.append(Phase(name, steps))

    def volume(self, name: str, size: int, _processes: object = None) -> None:
        self.phases.append(Phase(name, size, in_bytes=True))

    def extend(self, steps: int, _process: str = "") -> None:
        self.phases[-1].steps += 0 if self.phases[-1].in_bytes else steps

    def advance(self, steps: int, _process: str = "") -> None:
        if self.phases:
            self.phases[-1].done += steps
            self.phases[-1].longest = max(self.phases[-1].longest, steps)

    def steps(self, name: str) -> int:
        """Number of steps of the phases of this name."""
        return sum(each.steps for each in self.phases if each.name == name)

    def unfinished(self) -> list[Phase]:
        """Phases that ended before all of their steps were reported as done, or had more."""
        return [each for each in self.phases if each.steps != each.done]


@contextmanager
def ledger() -> Iterator[Ledger]:
    driver = SimDriver(MACHINE)
    driver.init()
    try:
        yield Ledger(driver)
    finally:
        driver.close()


@pytest.mark.parametrize("check", ["fast", "full"])
def test_every_phase_ends_with_all_steps_done(check: Check) -> None:
    progress = Recorder()
    with ledger() as driver:
        report = apply.apply(run_request(LARGE, MACHINE, check), driver, progress=progress)
    assert report.outcome == "ok"
    assert progress.unfinished() == []
    assert progress.steps("take down") == progress.steps("check") > 2 * PAGES


def test_verification_by_samples_reports_progress_while_it_runs() -> None:
    progress = Recorder()
    with ledger() as driver:
        apply.apply(run_request(LARGE, MACHINE), driver, progress=progress)
    assert progress.steps("write") == 2 * PAGES
    assert progress.steps("read") == 4 * PAGES
    assert all(each.longest < each.steps / 2 for each in progress.phases if each.name in ("write", "read"))


@pytest.mark.parametrize("check", ["fast", "full"])
def test_progress_of_processes_counts_the_steps_of_all(check: Check) -> None:
    progress = Recorder()
    report = processes.apply(ensemble(SEVERAL, MACHINE, check=check), progress=progress)
    assert report.outcome == "ok"
    assert progress.unfinished() == []
    assert progress.steps("start") == 3
    assert progress.steps("map") == 3 * PAGES
    assert progress.steps("take down") > 6 * PAGES


FEW = 40
SLEEPING = f"""
ranges: {{weights: {{size: 8MiB}}, kv: {{size: {2 * FEW}MiB}}}}
chunks: {{w: {{location: gpu0, size: 2MiB, count: 4}}, page: {{location: gpu0, size: 2MiB, count: {FEW}}}}}
map: {{weights: w, kv: page}}
access: {{weights: {{gpu0: rw}}, kv: {{gpu0: rw}}}}
states: {{asleep: {{drop: [kv], offload: {{w: "host:0"}}}}, half: {{drop: [kv]}}}}
"""


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_rehearsal_counts_its_switches_and_their_checks(check: Check) -> None:
    """And nothing else: what it writes and reads are neither calls nor steps."""
    progress = Recorder()
    with ledger() as driver:
        report = apply.apply(replace(run_request(SLEEPING, MACHINE, check), rehearse=True), driver, progress=progress)
    assert report.outcome == "ok"
    assert progress.unfinished() == []
    assert progress.steps("rehearse") > 8 * FEW


@pytest.mark.parametrize("full", [False, True])
def test_a_switch_of_a_held_layout_is_a_phase_of_its_own(full: bool) -> None:
    progress = Recorder()

    def hold(made: Conducted) -> HoldResult:
        layout = HeldLayout(made, "", lambda _source, before: Revision(before, ""))
        for state in ("asleep", "awake"):
            assert layout.switch(state).make(full=full).different == 0
        assert layout.check().different == 0
        return HoldResult()

    with ledger() as driver:
        report = apply.apply(run_request(SLEEPING, MACHINE), driver, progress=progress, hold=hold)
    assert report.outcome == "ok"
    assert progress.unfinished() == []
    assert [each.name for each in progress.phases][-4:] == ["change", "change", "check", "take down"]
    assert progress.phases[-4].steps > FEW
    assert progress.phases[-2].steps > 2 * FEW


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [(1.0, [1] * 24), (0.03, [1, 2, 4, 2, 3, 6, 3, 3]), (0.0, [1, 2, 4, 5, 6, 6])],
)
def test_parts_of_a_run_are_small_while_its_steps_are_slow(seconds: float, sizes: list[int]) -> None:
    """A stop is looked for, and progress is reported, between two parts."""
    text = "chunks: {page: {location: gpu0, size: 2MiB, count: 12}, other: {location: gpu0, size: 2MiB, count: 12}}"
    now, found = [0.0], list[int]()
    run, other = (item for item in plan_of(text, invented(1)).items if isinstance(item, StepRun))
    for part in parts_of_runs([run, run, other], 6, 0.1, lambda: now[0]):
        assert isinstance(part, StepRun)
        now[0] += seconds * len(part)
        found.append(len(part))
    assert found == [*sizes, *sizes[: len(found) - len(sizes)]]  # those of another entry begin with one again


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 1), (0.03, 4), (0.0, STRIDE)])
def test_few_slow_steps_are_reported_one_by_one_and_many_fast_ones_together(seconds: float, most: int) -> None:
    """At most a tenth of a second passes between two reports, if no step takes longer."""
    now, sizes = [0.0], list[int]()
    for _ in reported(range(2001), sizes.append, lambda: now[0]):
        now[0] += seconds
    assert sum(sizes) == 2001
    assert {*sizes[:-1]} == {most}
