"""Changes of a layout of two processes, whose workers are in threads: made everywhere, or rolled back everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from memtopo.common.errors import Stopped
from memtopo.driver.kernels import KernelDriver
from memtopo.executor import StepFailed
from memtopo.kinds.step import Phase
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Report
from memtopo.plans.transition import Stage
from memtopo.run import messages
from memtopo.run.layout_plans import WHOLE, Goal
from memtopo.run.messages import ChangeCommand, ChangeResult, CheckChange, Hold, MakeStage, PlanChange, StartRollback
from memtopo.run.processes.worker_process import Peers
from memtopo.run.processes.workers import ChangeRefused, Workers
from tests.helpers.failing_driver import Failing
from tests.helpers.reports import tallies
from tests.helpers.specs import ensemble, run_request
from tests.run.processes.conversation import GOOD, MACHINE, Conversation, command_all, conversations

TEXT = """
memtopo: 1
name: two
processes:
  server:
    ranges: {w: {size: 8MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 4, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
    states: {asleep: {offload: {w: host:0}}}
  engine:
    ranges: {w: {size: 8MiB}, kv: {size: 4MiB}}
    chunks: {kv: {location: gpu1, size: 2MiB, count: 2}}
    imports: {w: {from: server.w}}
    map: {w: [w], kv: [kv]}
    access: {w: {gpu1: r}, kv: {gpu1: rw}}
    states: {asleep: {drop: [kv]}}
"""
SMALLER = TEXT.replace("w: {size: 8MiB}", "w: {size: 2MiB}").replace("count: 4", "count: 1")


class Layout(Workers):
    """The layout, built in both workers; `failing` are the engine's creations of chunks. `sent` are the commands."""

    def __init__(self, start: Callable[..., Conversation]) -> None:
        self.failing: list[Failing] = []
        self.sent: list[ChangeCommand | Hold] = []
        self.stop_at: object = None
        self.talks = {label: start(TEXT, label, self._wrap) for label in ("server", "engine")}
        super().__init__(ensemble(TEXT, MACHINE), SafeProgress(Progress()), lambda: 0, Peers())
        self.stop = lambda: int(self.stop_at in self.sent)
        for worker in self.talks.values():
            worker.start()
        for phase in Phase:
            self.all(messages.BuildPhase(phase))

    def _wrap(self, label: str, driver: KernelDriver) -> KernelDriver:
        if label == "server":
            return driver
        self.failing.append(Failing(driver, only={"mem_create"}))
        return self.failing[0]

    def _change(self, command: ChangeCommand | Hold) -> dict[str, ChangeResult]:
        self.sent.append(command)
        found = command_all(self.talks, command)
        assert all(isinstance(each, ChangeResult) for each in found.values()), found
        return found  # type: ignore[return-value]

    def all(self, command: object) -> None:
        """Have both do something that succeeds."""
        assert command_all(self.talks, command) == {"server": GOOD, "engine": GOOD}

    @property
    def where(self) -> tuple[str, int]:
        return self.state, self.generation

    def end(self) -> dict[str, Report]:
        """Have both take down, and return their reports, in which nothing failed and nothing is left.

        Descriptors are those of one process here, and not counted.
        """
        found = command_all(self.talks, messages.TakeDown())
        assert all(isinstance(each, messages.WorkerFinished) for each in found.values()), found
        reports = {label: each.report for label, each in found.items()}  # type: ignore[attr-defined]
        for report in reports.values():
            assert report.failure is None
            assert not any(report.left.ledger_after.values())
        return reports


@pytest.fixture
def layout() -> Iterator[Layout]:
    with conversations() as start:
        yield Layout(start)


def test_a_switch_and_back_keeps_the_bytes_of_what_is_offloaded(layout: Layout) -> None:
    layout.all(messages.CheckSteps())
    layout.all(messages.WriteKept(("asleep",)))
    layout.switch("asleep")
    assert layout.where == ("asleep", 2)
    layout.all(messages.ReadKept(("asleep",)))
    layout.switch("awake")
    assert layout.where == ("awake", 3)
    layout.all(messages.ReadKept(("asleep",)))
    reports = layout.end()
    found = tallies(reports["server"].checks)["bytes"]
    assert found.looked_at == found.as_declared > 0


def test_a_switch_to_the_present_state_touches_nothing(layout: Layout) -> None:
    layout.switch("awake")
    assert layout.where == ("awake", 1)


def test_a_state_that_does_not_exist_is_refused_before_anything_changes(layout: Layout) -> None:
    """And all processes release again what they have retained to plan it."""
    with pytest.raises(ChangeRefused, match=r"^server: there is no state 'asleeep'; engine: there is") as refused:
        layout.switch("asleeep")
    assert refused.value.hint == "did you mean 'asleep'?"
    assert refused.value.exit_code == 4
    assert [type(each) for each in layout.sent] == [PlanChange, Hold]
    layout.switch("asleep")
    assert layout.where == ("asleep", 2)


def test_a_failure_in_one_process_brings_all_back(layout: Layout) -> None:
    layout.switch("asleep")
    layout.failing[0].calls, layout.failing[0].at = 0, 2
    with pytest.raises(StepFailed, match=r"^engine: .*cuMemCreate"):
        layout.switch("awake")
    assert layout.where == ("asleep", 3)
    assert [each.reason.startswith("engine: ") for each in layout.sent if isinstance(each, StartRollback)] == [True]
    layout.switch("awake")
    assert layout.where == ("awake", 4)
    layout.end()


@pytest.mark.parametrize("stage", [Stage.SETTLE, Stage.UNMAP, Stage.MAP])
def test_a_signal_between_two_stages_brings_all_back(layout: Layout, stage: Stage) -> None:
    layout.stop_at = MakeStage(stage)
    with pytest.raises(Stopped):
        layout.switch("asleep")
    assert layout.state == "awake"
    layout.stop_at = None
    layout.switch("asleep")
    assert layout.state == "asleep"


def change(layout: Layout) -> None:
    """Change the layout to a quarter of its weights."""
    layout.change(run_request(SMALLER, MACHINE), json.dumps({"spec": SMALLER}))


def taken(reports: dict[str, Report]) -> dict[str, list[int]]:
    """Bytes of each GPU that processes held, in which no check found a difference."""
    for report in reports.values():
        assert report.left
        assert report.checks
        assert report.checks.differences == ()
    return {
        label: [each.before - (each.held or 0) for each in report.left.memory] if report.left else []
        for label, report in reports.items()
    }


def test_what_a_changed_layout_held_is_in_the_reports(layout: Layout) -> None:
    layout.all(messages.CheckSteps())
    change(layout)
    assert taken(layout.end()) == {"server": [2 << 20], "engine": [4 << 20]}


def test_a_change_of_one_process_raises_the_generation_of_the_layout(layout: Layout) -> None:
    text = TEXT.replace("kv: {size: 4MiB}", "kv: {size: 8MiB}").replace("2MiB, count: 2", "4MiB, count: 2")
    layout.change(run_request(text, MACHINE), json.dumps({"spec": text}))
    assert layout.where == ("awake", 2)
    layout.change(run_request(text, MACHINE), json.dumps({"spec": text}))
    assert layout.where == ("awake", 2), "nothing was touched"


def test_a_signal_in_the_check_of_a_change_leaves_nothing_in_the_reports(layout: Layout) -> None:
    layout.all(messages.CheckSteps())
    layout.stop_at = CheckChange()
    with pytest.raises(Stopped):
        change(layout)
    assert taken(layout.end()) == {"server": [8 << 20], "engine": [4 << 20]}


def test_a_worker_that_ends_between_the_check_and_the_end_of_a_change_reports_the_layout_before(layout: Layout) -> None:
    layout.all(messages.CheckSteps())
    layout.plan(Goal(WHOLE, request=run_request(SMALLER, MACHINE), source=json.dumps({"spec": SMALLER})))
    for command in (*map(MakeStage, Stage), CheckChange()):
        assert command_all(layout.talks, command) == dict.fromkeys(layout.talks, ChangeResult())
    assert taken(layout.end()) == {"server": [8 << 20], "engine": [4 << 20]}
