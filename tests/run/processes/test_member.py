"""A member, message by message: it takes part at the points that its program chooses, and keeps its memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from memtopo.common import __version__
from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.step import Phase
from memtopo.language import SpecText
from memtopo.plans.report import Report
from memtopo.plans.transition import Stage
from memtopo.run import messages
from memtopo.run.messages import (
    Attend,
    Attending,
    BuildPhase,
    Ended,
    FromWorker,
    HandleAnswer,
    HandleRequest,
    MakeStage,
    Resume,
    StartRollback,
    TakeDown,
    WorkerFailed,
)
from memtopo.run.processes import member
from memtopo.run.processes.gates import Gate
from memtopo.run.processes.gathering import Join
from memtopo.run.processes.member import Member, ProcessLost
from memtopo.session.composition import HoldResult
from memtopo.sharing.channel import Channel, Received
from memtopo.sharing.endpoints import endpoint
from tests.helpers.failing_driver import Failing
from tests.helpers.processes import open_descriptors
from tests.run.processes.conversation import TO_WORKER, start_message
from tests.run.processes.test_worker_process import REPORT

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
    states: {asleep: {drop: [w]}}
  engine:
    ranges: {w: {size: 8MiB}}
    imports: {w: {from: server.w}}
    map: {w: [w]}
    access: {w: {gpu1: r}}
"""
LOST = "process engine was killed by SIGKILL"


class _Failing(Member):
    """A member with a driver whose calls can fail."""

    failing: Failing

    def wrap(self, _process: str, driver: KernelDriver) -> Failing:
        self.failing = Failing(driver, only={"mem_create", "device_get_uuid"})
        return self.failing


class Joined:
    """A process of the layout as a member, and the coordinator's end of its channel."""

    def __init__(self, label: str = "server") -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = Channel[FromWorker](ours, get_args(FromWorker))
        gates = Gate(*os.pipe()), Gate(*os.pipe())
        start = replace(start_message(TEXT, label, timeout=1.0), exclusive=False)
        self.signals: Iterator[int] = repeat(0)
        lock = os.fdopen(os.open(os.devnull, os.O_RDONLY), "rb", buffering=0)
        self.member = _Failing(Channel(theirs, TO_WORKER), gates, start, lambda: next(self.signals), locks=[lock])

    def tell(self, *found: object) -> None:
        for each in found:
            self.channel.send(each)

    def received(self) -> Iterator[Received[Any]]:
        """Yield the messages of the member since the last time, with their handles."""
        with suppress(BlockingIOError):
            while received := self.channel.receive():
                yield received

    def heard(self) -> list[Any]:
        """Messages of the member since the last time."""
        return [each.message for each in self.received()]

    def leave(self) -> Report:
        """Have it leave, after which it finds the report of all; return what it returns."""
        self.tell(Ended(REPORT))
        return self.member.leave(HoldResult())

    def close(self) -> None:
        self.channel.close()
        assert isinstance(self.member.driver, SimDriver)
        self.member.driver.close()

    @property
    def chunks(self) -> int:
        return len(self.member.run.execution.layout.chunks)


@pytest.fixture
def joined() -> Iterator[Joined]:
    """A member that has not built anything; the test has it leave."""
    before = open_descriptors()
    found = Joined()
    yield found
    found.close()
    assert open_descriptors() == before


@pytest.fixture
def built(joined: Joined) -> Joined:
    """A member whose layout is complete and served."""
    joined.tell(*map(BuildPhase, Phase), messages.Hold(), Resume(1))
    joined.member.build()
    assert joined.heard()[-1].offers
    return joined


@pytest.fixture
def engine(built: Joined) -> Iterator[Joined]:
    """The other member, which imports the memory of the first one."""
    found = Joined("engine")
    for phase in Phase:
        found.tell(BuildPhase(phase))
        if phase is Phase.IMPORT:
            built.tell(HandleRequest("engine", "server", "w", 0, 4))
            built.member.poll()
            (received,) = [each for each in built.received() if isinstance(each.message, HandleAnswer)]
            found.channel.send(received.message, received.handles)
    found.tell(messages.Hold(), Resume(1))
    found.member.build()
    yield found
    found.close()
    built.leave()


def switch_to(state: str) -> list[object]:
    """Commands of a change."""
    return [messages.PlanChange(state), *map(MakeStage, Stage), messages.CheckChange(), messages.EndChange()]


def test_a_member_makes_a_change_that_its_program_hears_of_before(built: Joined) -> None:
    seen: list[tuple[str, str, int, list[Any]]] = []
    built.tell(Attend(1, "asleep", "source"), *switch_to("asleep"), Resume(2), Attend(2), Resume(2))
    member = built.member
    member.announce = lambda state, source: seen.append((state, source, built.chunks, built.heard()))
    member.poll()
    assert seen == [("asleep", "source", 4, [])]
    assert (member.run.variant[0], member.generation, built.chunks) == ("asleep", 2, 0)
    answers = built.heard()
    assert (answers[0], answers[-2].touched, answers[-1]) == (Attending(1), True, Attending(2))
    built.tell(TakeDown())
    member.poll()
    assert (member.over, member.lost, member.timeout) == ("it was released", False, 1.0)
    built.leave()


def test_a_forked_child_has_neither_the_channel_nor_the_gates_nor_the_lock(joined: Joined) -> None:
    before = open_descriptors()
    joined.member.abandon()
    assert open_descriptors() == before - 6, "two gates have two ends each"
    with pytest.raises(ProcessLost, match="is a child of the one that has joined"):
        joined.member.poll()


def test_a_member_whose_program_refuses_does_not_take_part_in_that_round(built: Joined) -> None:
    def refuse(state: str, _source: str) -> None:
        raise KeyError(state)

    built.member.announce, accept = refuse, built.member.announce
    built.tell(Attend(1, "asleep"))
    with pytest.raises(KeyError):
        built.member.poll()
    built.member.poll()
    built.member.announce = accept
    assert built.heard() == []
    built.tell(Resume(1), Attend(2, "asleep"), Resume(1))
    built.member.poll()
    built.member.poll()
    assert built.heard() == [Attending(2)]
    built.leave()


@pytest.mark.parametrize("failed", [False, True])
def test_a_member_keeps_its_memory_after_the_end_of_another_process_until_it_leaves(
    built: Joined, *, failed: bool
) -> None:
    """Only a failure is raised, whenever it is polled. The report of all processes is waited for after a release."""
    member = built.member
    built.tell(TakeDown(LOST, failed), Attend(1, "asleep"))
    for _ in range(2):
        if failed:
            with pytest.raises(ProcessLost, match=LOST):
                member.poll()
        else:
            member.poll()
    assert (member.over, member.wait(0), built.chunks, built.heard()) == (LOST, False, 4, [])
    assert (built.leave().name, built.chunks) == ("server" if failed else REPORT.name, 0)
    first, *_, last = built.heard()
    assert first == messages.Leave(), "others hear it before it waits for them"
    assert (last.report.outcome, any(last.report.left.ledger_after.values())) == ("ok", False)


def test_files_that_a_program_opens_while_it_is_joined_are_no_leaks(built: Joined) -> None:
    own = os.dup(0)
    built.leave()
    os.close(own)
    assert (built.heard()[-1].report.outcome, built.member.run.request.exclusive) == ("ok", False)


def test_the_end_of_the_coordinator_is_raised_whenever_it_is_polled_and_the_memory_stays(built: Joined) -> None:
    built.channel.close()
    for _ in range(2):
        with pytest.raises(ProcessLost, match=r"the layout can only be taken down: the coordinator .* has ended"):
            built.member.poll()
    assert built.chunks == 4
    assert built.member.leave(HoldResult()).outcome == "ok"


def test_a_failure_of_another_process_ends_the_building(joined: Joined) -> None:
    joined.tell(*map(BuildPhase, (Phase.OPEN, Phase.RESERVE, Phase.CREATE)), TakeDown(LOST, failed=True))
    with pytest.raises(ProcessLost, match=LOST):
        joined.member.build()
    assert joined.chunks == 4
    report = joined.member.leave(HoldResult())
    assert report.left
    assert (joined.chunks, any(report.left.ledger_after.values())) == (0, False)


def test_a_member_that_waits_for_handles_of_a_process_that_has_ended_is_taken_down(engine: Joined) -> None:
    """It would wait for another command as long as the coordinator waits for its end."""
    engine.tell(Attend(1, "asleep"), *switch_to("asleep"), Resume(2))
    engine.member.poll()
    engine.tell(Attend(2, "awake"), *switch_to("awake")[: 1 + list(Stage).index(Stage.MAP) + 1], TakeDown(LOST, True))
    with pytest.raises(ProcessLost, match=LOST):
        engine.member.poll()
    assert [each for each in engine.heard() if isinstance(each, HandleRequest)]
    assert engine.member.leave(HoldResult()).outcome == "ok"


def test_a_member_whose_rollback_fails_says_so_at_once(built: Joined) -> None:
    """Its program may leave much later, and others may wait for its memory."""
    built.tell(Attend(1, "asleep"), *switch_to("asleep")[:-1], StartRollback("a failure elsewhere"))
    built.tell(*(MakeStage(stage, back=True) for stage in Stage))
    built.member.failing.at = built.member.failing.calls + 1
    with pytest.raises(ProcessLost, match="to roll back a change"):
        built.member.poll()
    (failed,) = [each for each in built.heard() if isinstance(each, WorkerFailed)]
    assert "to roll back a change (a failure elsewhere): cuMemCreate: CUDA_ERROR_UNKNOWN" in failed.error
    report = built.leave()
    assert report.failure
    assert (report.outcome, built.chunks) == ("failed", 0)


def test_a_member_whose_exports_cannot_be_queried_says_so_at_once(built: Joined) -> None:
    built.tell(Attend(1, "asleep"), messages.Hold())
    built.member.failing.at = built.member.failing.calls + 1
    with pytest.raises(ProcessLost, match="query of exports: cuDeviceGetUuid"):
        built.member.poll()
    assert [each for each in built.heard() if isinstance(each, WorkerFailed)]
    built.leave()


def test_a_member_that_leaves_in_the_middle_of_a_change_says_that_it_was_interrupted(built: Joined) -> None:
    """The others would wait for its part."""

    def interrupted() -> Iterator[int]:
        yield 0
        raise KeyboardInterrupt

    built.tell(Attend(1, "asleep"), *switch_to("asleep"))
    built.signals = interrupted()
    with pytest.raises(KeyboardInterrupt):
        built.member.poll()
    built.signals = repeat(0)
    built.leave()
    assert [each for each in built.heard() if isinstance(each, WorkerFailed | messages.Leave)] == [
        WorkerFailed("interrupted")
    ]


def test_a_process_that_cannot_plan_its_part_holds_up_no_other_one_at_a_gate(tmp_path: Path) -> None:
    where, ends, came = endpoint(socket=f"{tmp_path}/two.sock"), [*os.pipe(), *os.pipe()], list[Channel[Join]]()
    before = open_descriptors()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(where.path)
        listener.listen()

        def coordinate() -> int:
            if not came:
                came.append(Channel(listener.accept()[0], (Join,)))
                start = replace(start_message(TEXT, "server"), machine="none")
                came[0].send(start, [Handle(fd=os.dup(each)) for each in ends])
            return 0

        join = Join(__version__, "server", SpecText("two.yaml", TEXT), "two", None, (), "fast", 1.0)
        with pytest.raises(MemtopoError, match="two"):
            member.joined(where, lambda: join, 60.0, coordinate)
        came[0].close()
    assert open_descriptors() == before
    for each in ends:
        os.close(each)
