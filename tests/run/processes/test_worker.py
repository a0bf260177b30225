"""A worker, message by message: every command, request and failure."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import InternalError
from memtopo.common.processes import Broken
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Call
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.kinds.step import Phase
from memtopo.language import SpecText
from memtopo.run import messages
from memtopo.run.layout_plans import WHOLE, Goal
from memtopo.run.messages import HandleAnswer, HandleRequest
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.worker import SiblingHandles, planned, planned_source
from memtopo.sharing.client import IN_FLIGHT
from tests.helpers.failing_driver import Failing
from tests.helpers.forwarding import ForwardingDriver
from tests.helpers.lockstep import together
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import tallies
from tests.helpers.specs import run_request, server_and_readers
from tests.run.processes.conversation import GOOD, MACHINE, Conversation, conversations, start_message

TEXT = f"memtopo: 1\nname: two{server_and_readers(2)}"
STEPS = {
    Phase.OPEN: 1, Phase.RESERVE: 1, Phase.CREATE: 2, Phase.EXPORT: 1, Phase.MAP: 2, Phase.GRANT: 1, Phase.SETTLE: 1,
}  # fmt: skip
Talk = Callable[..., Conversation]


@pytest.fixture
def talk() -> Iterator[Talk]:
    with conversations() as start:
        yield lambda *arguments: start(TEXT, *arguments)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_worker_does_what_each_command_says_and_reports(talk: Talk, check: str) -> None:
    server = talk("server")
    ready = server.start(check)
    assert ready == messages.WorkerReady(rounds=1, volume=2 * (4 << 20) if check == "full" else 0)
    built = {**STEPS, Phase.OPEN: 2 if check == "full" else 1}  # a full check opens a context of each GPU
    assert server.build() == {phase: (built.get(phase, 0),) * 2 for phase in Phase}
    assert server.command(messages.CheckSteps()) == GOOD
    assert server.command(messages.WriteRound(0)) == GOOD
    if check == "full":
        assert server.command(messages.TryForbidden()) == GOOD
    assert server.command(messages.ReadRound(0)) == GOOD
    offers = server.command(messages.Hold())
    assert isinstance(offers, messages.ChangeResult)
    assert offers.offers
    assert [(each.name, each.kind, each.via, each.count, each.size) for each in offers.offers] == [
        ("w", "chunk", "fd", 2, 2 << 20)
    ]
    again = server.command(messages.Recheck())
    assert isinstance(again, messages.ChangeResult)
    assert again.checks
    assert (again.error, again.checks.different) == (None, 0)
    report = server.end()
    assert (report.outcome, report.exit_code, report.spec) == ("ok", 0, "two.yaml")
    found = tallies(report.checks)
    aspect = "bytes" if check == "fast" else "every byte"
    assert found[aspect].as_declared == found[aspect].looked_at == (4 if check == "fast" else 2)


def test_a_worker_plans_what_its_first_message_says_with_the_check_of_the_command() -> None:
    start = replace(start_message(TEXT, "reader"), seed=5, timeout=9.0, exclusive=False, visible=(1, 0))
    request, plans = planned(start, start.spec.read(), "full")
    assert (request.process, request.check, request.seed, request.timeout) == ("reader", "full", 5, 9.0)
    assert (request.exclusive, plans.name_of("reader")) == (False, "two/reader")
    held = replace(
        start,
        process="server",
        spec=SpecText("two.yaml", TEXT.replace("server:", "server:\n    held: true")),
        held=True,
    )
    assert [*(planned(held, held.spec.read(), "fast")[0].siblings or ())] == ["server"]


def test_a_worker_plans_a_change_with_all_that_its_command_says() -> None:
    start, source = start_message(TEXT, "server"), json.dumps({"spec": f"memtopo: 1\nname: two{server_and_readers(3)}"})
    with together(server_and_readers(2), MACHINE) as layout:
        run, in_use, absent = layout.runs["server"], ("server.w",), layout.plans.resources_of(["server.w"])
        run = ProcessRun(run.request, run.ledger, plans=run.plans, plan_source=partial(planned_source, start))
        goal, _ = run.goal(messages.PlanChange("awake", "full", in_use, absent=in_use))
        assert (goal, len(absent)) == (Goal(("awake", absent), "full", in_use), 2)
        goal, plans = run.goal(messages.PlanChange("awake", "full", in_use, source))
        assert (goal.variant, goal.check, goal.in_use, goal.request and goal.request.check) == (
            WHOLE,
            "full",
            in_use,
            "full",
        )
        assert len(plans.resources_of(["server.w"])) == 3


def test_what_is_skipped_is_not_checked_for_the_reason_that_was_given(talk: Talk) -> None:
    server = talk("server")
    server.start()
    server.build()
    assert server.command(messages.SkipVerification("the reader cannot")) == GOOD
    found = tallies(server.end().checks)["bytes"]
    assert (found.looked_at, found.not_checked, found.why_not) == (0, 4, "the reader cannot")


def test_handles_are_answered_as_many_as_there_are(talk: Talk) -> None:
    server = talk("server")
    server.start()
    early = server.command(HandleRequest("reader", "server", "w", 0, 1))
    assert isinstance(early, HandleAnswer)
    assert (early.requester, bool(early.error), early.code) == ("reader", True, "absent")
    server.build()
    for first, count, given in ((0, 2, 2), (1, 1, 1), (1, 5, 1)):
        server.channel.send(HandleRequest("reader", "server", "w", first, count))
        received = server.receive()
        assert received
        assert (received.message, len(received.handles)) == (HandleAnswer("reader"), given)
        received.close()
    answer = server.command(HandleRequest("reader", "server", "w", 2, 1))
    assert isinstance(answer, HandleAnswer)
    assert (answer.requester, bool(answer.error), answer.code) == ("reader", True, None)
    assert server.end().exit_code == 0


class Defective(Failing):
    """A driver whose failing call meets a defect of memtopo."""

    def _wrap(self, method: str, call: Call) -> Call:
        failing = super()._wrap(method, call)

        @wraps(call)
        def broken(*args: Any, **kwargs: Any) -> Any:
            try:
                return failing(*args, **kwargs)
            except DriverError as error:
                raise ValueError(str(error)) from error

        return broken


@pytest.mark.parametrize("kind", [Failing, Defective])
def test_no_descriptor_stays_open_of_handles_of_which_one_could_not_be_made(talk: Talk, kind: type[Failing]) -> None:
    exports: list[Failing] = []

    def wrap(_: str, driver: KernelDriver) -> KernelDriver:
        exports.append(kind(driver, only={"mem_export_to_shareable_handle"}))
        return exports[0]

    server = talk("server", wrap)
    server.start()
    server.build()
    before, exports[0].calls, exports[0].at = open_descriptors(), 0, 2
    answer = server.command(HandleRequest("reader", "server", "w", 0, 2))
    assert isinstance(answer, HandleAnswer)
    assert "made to fail" in str(answer.error)
    assert open_descriptors() == before
    assert server.end().exit_code == 0


def imported(reader: Conversation) -> HandleRequest:
    """Have a reader build up to its imports, and return its request."""
    for phase in (Phase.OPEN, Phase.RESERVE, Phase.CREATE, Phase.EXPORT):
        assert reader.command(messages.BuildPhase(phase)) == GOOD
    request = reader.command(messages.BuildPhase(Phase.IMPORT))
    assert isinstance(request, HandleRequest)
    return request


def test_an_importer_requests_handles_and_maps_what_it_is_given(talk: Talk) -> None:
    server, reader = talk("server"), talk("reader")
    for each in (server, reader):
        each.start()
    server.build()
    assert imported(reader) == HandleRequest("reader", "server", "w", 0, 2)
    server.channel.send(HandleRequest("reader", "server", "w", 0, 2))
    given = server.receive()
    assert given
    reader.channel.send(messages.KeepAlive())
    reader.channel.send(given.message, given.handles)
    assert reader.hear() == GOOD
    for phase in (Phase.MAP, Phase.GRANT, Phase.SETTLE):
        assert reader.command(messages.BuildPhase(phase)) == GOOD
    assert reader.command(messages.CheckSteps()) == GOOD
    assert server.command(messages.WriteRound(0)) == GOOD
    assert reader.command(messages.ReadRound(0)) == GOOD
    found = tallies(reader.end().checks)["bytes"]
    assert (found.looked_at, found.as_declared, found.not_checked) == (4, 4, 0)
    assert server.end().exit_code == 0


MUTUAL = """
memtopo: 1
name: mutual
processes:
  one:
    chunks: {a: {location: gpu0, size: 2MiB, handles: fd}}
    exports: {a: {chunk: a, via: fd}}
    imports: {b: {from: two.b}}
  two:
    chunks: {b: {location: gpu0, size: 2MiB, handles: fd}}
    exports: {b: {chunk: b, via: fd}}
    imports: {a: {from: one.a}}
"""


class NotesSteps(ForwardingDriver):
    """Driver that notes for each exported handle whether a step is in the middle of its call."""

    def __init__(self, driver: KernelDriver) -> None:
        super().__init__(driver)
        self.within: list[bool] = []

    def mem_export_to_shareable_handle(self, *args: Any) -> Any:
        self.within.append(any(frame.name == "do" for frame in traceback.extract_stack()))
        return self._driver.mem_export_to_shareable_handle(*args)


def test_a_worker_that_waits_for_a_handle_serves_others_between_its_steps() -> None:
    """A step of its own has exported the handle once, to try it."""
    drivers: list[NotesSteps] = []

    def wrap(_label: str, driver: KernelDriver) -> KernelDriver:
        drivers.append(NotesSteps(driver))
        return drivers[-1]

    with conversations() as start:
        one, two = start(MUTUAL, "one", wrap), start(MUTUAL, "two")
        for each in (one, two):
            each.start()
            assert imported(each)
        given = []
        for waiting, serving, export in ((one, two, "b"), (two, one, "a")):
            serving.channel.send(HandleRequest(waiting.label, serving.label, export, 0, 1))
            given.append(serving.receive())
        for waiting, received in zip((one, two), given, strict=True):
            assert received
            waiting.channel.send(received.message, received.handles)
        assert [one.hear(), two.hear()] == [GOOD, GOOD]
        for each in (one, two):
            each.end()
    assert drivers[0].within == [True, False]


def test_handles_of_a_sibling_are_taken_in_batches_of_which_one_is_open() -> None:
    """As many as the import has, also after a change."""
    requests: list[tuple[str, str, int, int]] = []
    given = [0]

    def request(holder: str, export: str, first: int, count: int) -> list[Handle]:
        requests.append((holder, export, first, count))
        return [Handle(fd=os.dup(0)) for _ in range(count + given[0])]

    def geometry(chunks: int) -> Geometry:
        return run_request(server_and_readers(chunks), MACHINE).of_process("reader").geometry

    before, handles = open_descriptors(), SiblingHandles(geometry(IN_FLIGHT + 2), request, HandleSource())

    def taken(index: int) -> Handle:
        handles.await_handle("server", "w", index)
        return handles.take("server", "w", index)

    assert taken(0) is taken(0)
    assert open_descriptors() == before + IN_FLIGHT
    taken(IN_FLIGHT)
    assert requests == [("server", "w", 0, IN_FLIGHT), ("server", "w", IN_FLIGHT, 2)]
    assert open_descriptors() == before + 2
    handles.settle()
    assert open_descriptors() == before
    handles.expect(geometry(3))
    taken(1)
    assert requests[2:] == [("server", "w", 1, 2)]
    handles.settle()
    given[0] = 1
    with pytest.raises(InternalError, match="server gave 4 of 3 handles of w"):
        taken(0)
    assert open_descriptors() == before


def test_what_concerns_holders_elsewhere_is_asked_of_their_source() -> None:
    asked: list[tuple[object, ...]] = []
    geometry, other = run_request(server_and_readers(1), MACHINE).of_process("reader").geometry, HandleSource()
    handles = SiblingHandles(geometry, lambda *_: [], other)
    calls: list[tuple[Any, ...]] = [
        ("attach", "h"),
        ("take", "h", "w", 1),
        ("lend", "h", "w", 2),
        ("give_back", "h", "w", {1: 2}),
    ]
    calls += [("seal", "h", "w", {3: 4}, "k"), ("gone", "h"), ("detach", "h"), ("expect", geometry), ("settle",)]
    for name, *arguments in calls:
        setattr(other, name, lambda *args, _name=name, **options: asked.append((_name, *args, *options.values())))
        getattr(handles, str(name))(*arguments, **({"key": "k", "first": 3, "epoch": 4} if name == "lend" else {}))
    assert asked == [(*each, "k", 3, 4) if each[0] == "lend" else each for each in calls]


def test_an_importer_fails_with_the_error_of_the_exporter(talk: Talk) -> None:
    reader = talk("reader")
    reader.start()
    imported(reader)
    failed = reader.command(HandleAnswer("reader", "process server is gone"))
    assert isinstance(failed, messages.WorkerFailed)
    assert "server does not give w: process server is gone" in failed.error
    assert isinstance(reader.hear(), messages.WorkerFinished)
    assert reader.receive() is None


def test_a_step_that_fails_is_told_before_anything_is_undone(talk: Talk) -> None:
    """Otherwise the others go on, while it waits for them before it releases what they may use.

    Of a run that fails, no step is reported as done.
    """
    server = talk("server", lambda _, driver: Failing(driver, 2, only={"mem_create"}))
    server.start()
    for phase in (Phase.OPEN, Phase.RESERVE):
        assert server.command(messages.BuildPhase(phase)) == GOOD
    server.begun = server.steps = 0
    failed = server.command(messages.BuildPhase(Phase.CREATE))
    assert isinstance(failed, messages.WorkerFailed)
    assert "cuMemCreate" in failed.error
    assert (server.begun, server.steps) == (2, 0)
    server.begun = server.steps = 0
    finished = server.hear()
    assert isinstance(finished, messages.WorkerFinished)
    assert server.begun == server.steps > 0
    report = finished.report
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert report.left
    assert not any(report.left.ledger_after.values())
    assert server.receive() is None


def test_a_query_of_exports_that_fails_is_told_before_anything_is_undone(talk: Talk) -> None:
    server = talk("server", lambda _, driver: Failing(driver, 1, only={"device_get_uuid"}))
    server.start()
    server.build()
    failed = server.command(messages.Hold())
    assert isinstance(failed, messages.WorkerFailed)
    assert failed.error.startswith("query of exports: cuDeviceGetUuid")
    finished = server.hear()
    assert isinstance(finished, messages.WorkerFinished)
    assert (finished.report.outcome, finished.report.exit_code) == ("failed", 4)
    assert server.receive() is None


def test_a_signal_interrupts_and_everything_is_undone(talk: Talk) -> None:
    server = talk("server")
    server.start()
    server.build()
    server.signals.append(15)
    assert server.hear() == messages.WorkerFailed("interrupted")
    finished = server.hear()
    assert isinstance(finished, messages.WorkerFinished)
    assert finished.report.left
    assert not any(finished.report.left.ledger_after.values())


@pytest.mark.parametrize("first", [messages.TakeDown(), messages.Hold()])
def test_a_first_message_that_does_not_start_is_an_internal_error(talk: Talk, first: object) -> None:
    server = talk("server")
    broken = server.command(first)
    assert broken == Broken(f"a worker's first message is {type(first).__name__}", None, 70)
    assert server.receive() is None


def test_an_unexpected_error_is_reported_with_its_type(talk: Talk) -> None:
    def wrap(label: str, driver: KernelDriver) -> KernelDriver:
        raise ZeroDivisionError(f"of {label}")

    server = talk("server", wrap)
    assert server.start() == Broken("internal error: ZeroDivisionError: of server", None, 70)
    assert server.receive() is None


def test_a_worker_without_its_conductor_takes_down(talk: Talk) -> None:
    drivers: list[Failing] = []

    def wrap(_: str, driver: KernelDriver) -> KernelDriver:
        drivers.append(Failing(driver, only={"mem_release"}))
        return drivers[0]

    server = talk("server", wrap)
    server.start()
    server.build()
    server.close()
    assert drivers[0].calls == 2


def test_a_silent_conductor_is_lost_after_the_timeout(talk: Talk) -> None:
    server = talk("server")
    server.start("fast", 0.1)
    failed = server.hear()
    assert isinstance(failed, messages.WorkerFailed)
    assert "no message from the conductor for 0.1 s" in failed.error
    assert isinstance(server.hear(), messages.WorkerFinished)
