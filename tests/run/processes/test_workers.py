"""The conductor: the first message to a worker, and the progress and times of a whole run."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from memtopo import machine as machines
from memtopo.common.errors import ExchangeError, InternalError, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.driver.handles import close_handles
from memtopo.driver.trace_files import process_file
from memtopo.drivers import target
from memtopo.language import SpecText
from memtopo.machine import MachineLine
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Check, Checks, Report
from memtopo.run import processes
from memtopo.run.holder import HeldLayout
from memtopo.run.messages import (
    Attend,
    Attending,
    ChangeResult,
    Command,
    EndChange,
    Ended,
    FromWorker,
    HandleAnswer,
    HandleRequest,
    Hold,
    KeepAlive,
    Leave,
    Lend,
    Lent,
    PlanChange,
    Resume,
    StartWorker,
    StepsDone,
    TakeDown,
    WorkerFinished,
    WorkerReady,
)
from memtopo.run.processes import Workers
from memtopo.run.processes.ensemble import Ensemble, NotStarted
from memtopo.run.processes.worker_process import Peers, UserProcess, WorkerProcess
from memtopo.run.processes.workers import SPARE, ChangeRefused, require_planned
from memtopo.run.verification.rounds import FORBIDDEN
from memtopo.session.composition import HoldResult, Revision
from memtopo.sharing.channel import Channel
from memtopo.sharing.offers import ChangeFailed
from memtopo.sharing.sockets import wait_readable
from tests.helpers.holders import until
from tests.helpers.machines import identified, invented
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import tallies
from tests.helpers.specs import ensemble
from tests.run.processes.conversation import TO_WORKER
from tests.run.processes.test_worker_process import REPORT

TWO = Path(__file__).with_name("two.yaml")
READ_ONLY = TWO.read_text().replace("access: {v: {gpu0: rw}}", "access: {v: {gpu0: r}}")
MACHINE = invented(2)


def test_the_first_message_has_all_from_which_a_worker_plans() -> None:
    made = ensemble(TWO, MACHINE, check="full", timeout=7.0)
    machine = MachineLine("mine", simulated=True, devices=(), driver="1")
    made = replace(
        made,
        request=replace(made.request, seed=11, trace="/traces", machine=machine),
        sockets={"camera": "/run/camera.sock"},
        allow_uids=(1000,),
    )
    assert made.start_message("reader", (1,)) == StartWorker(
        process="reader",
        spec=SpecText(str(TWO), TWO.read_text()),
        machine=machines.dump(MACHINE),
        machine_name="mine",
        simulated=True,
        visible=(1,),
        timeout=7.0,
        gpus=tuple(target.uuids(MACHINE)),
        sockets={"camera": "/run/camera.sock"},
        allow_uids=(1000,),
        check="full",
        seed=11,
        trace=str(process_file("/traces", "reader")),
    )


def test_only_real_workers_of_visible_gpus_have_an_environment() -> None:
    made = ensemble(TWO, identified(["GPU-" + each * 32 for each in "abc"]))
    real = replace(made, request=replace(made.request, machine=replace(made.request.machine, simulated=False)))
    assert (made.environment((0,)), real.environment(())) == ({}, {})
    assert real.environment((2, 0)) == {"CUDA_VISIBLE_DEVICES": f"GPU-{'c' * 32},GPU-{'a' * 32}"}
    with pytest.raises(InternalError, match="has no UUID"):
        replace(real, machine=MACHINE).environment((0,))


class Phases(Progress):
    """Notes each phase with its total and with what was counted."""

    def __init__(self) -> None:
        self.found: list[list[object]] = []
        self.ended = 0

    def phase(self, name: str, steps: int, _processes: object = None) -> None:
        self.found.append([str(name), steps, 0, 0])

    def volume(self, name: str, size: int, _processes: object = None) -> None:
        self.found.append([f"{name} bytes", size, 0, 0])

    def extend(self, steps: int, _process: str = "") -> None:
        self.found[-1][2] += steps  # type: ignore[operator]

    def advance(self, steps: int, _process: str = "") -> None:
        self.found[-1][3] += steps  # type: ignore[operator]

    def end(self) -> None:
        self.ended += 1


@dataclass
class Whole:
    """A whole run with a full check, held once: its report, its progress, and what was seen while it was held."""

    report: Report
    phases: Phases
    checks: Checks
    handles: int
    offers: list[str]
    contexts: Sequence[str]
    found: list[list[object]]


@pytest.fixture(scope="module")
def whole() -> Whole:
    phases = Phases()
    seen: dict[str, Any] = {}

    def hold(made: Workers) -> HoldResult:
        made.release_contexts()
        seen["found"] = [*map(list, phases.found)]
        layout = HeldLayout(made, "", lambda _source, before: Revision(before, ""))
        seen["checks"] = layout.check()
        handles = made.request_handles("server", "w", 0, 2)
        seen["handles"] = len(handles)
        close_handles(handles)
        with pytest.raises(MemtopoError):
            made.request_handles("server", "w", 2, 1)
        seen["offers"] = [f"{label}.{each.name}" for label, worker in made.workers.items() for each in worker.offers]
        seen["contexts"] = layout.contexts
        assert made.watch() == 0
        return HoldResult(["held for a moment"])

    return Whole(
        processes.apply(ensemble(READ_ONLY, MACHINE, check="full"), progress=phases, hold=hold), phases, **seen
    )


def test_a_layout_of_several_processes_is_checked_again_and_gives_handles_while_held(whole: Whole) -> None:
    assert (whole.report.outcome, whole.report.exit_code) == ("ok", 0), whole.report
    assert "held for a moment" in whole.report.notes
    assert sum("simulated:" in note for note in whole.report.notes) == 1
    assert (whole.checks.different, whole.handles) == (0, 2)
    assert sorted(whole.offers) == ["server.b", "server.e", "server.w"]
    assert whole.contexts == ["gpu0", "gpu0"]  # of the exporter of a buffer and an event, and of their importer
    assert tallies(whole.checks)["access"].looked_at > 0


def test_a_full_check_tries_forbidden_accesses_and_reads_every_byte(whole: Whole) -> None:
    aspects = ("refused", FORBIDDEN, "every byte")
    found = {each.name: tallies(each.checks) for each in whole.report.processes}
    assert {name: [each[aspect].looked_at for aspect in aspects if aspect in each] for name, each in found.items()} == {
        "server": [6],
        "reader": [2, 1, 3],
    }


def test_progress_and_times_have_the_phases_of_all_processes(whole: Whole) -> None:
    report, phases = whole.report, whole.phases
    counts = {"open": 4, "reserve": 2, "create": 4, "export": 3, "import": 4, "map": 4, "grant": 2, "settle": 2}
    building = [[phase, 0, count, count] for phase, count in counts.items()]
    volume = 26 << 20
    assert whole.found == [["start", 2, 0, 2], *building, ["check", 0, 25, 25], ["verify bytes", volume, 0, volume]]
    assert (phases.found[-1], phases.ended) == (
        ["take down", 0, 25, 25],
        3,
    )  # of the check, of the phases before the hold, and of all
    times = {"start": 2, **counts, "open": 2, "check": 23, "verify": 2, "take down": 2}
    assert [(str(each.phase), each.steps) for each in report.times] == [*times.items()]
    assert all(each.seconds >= 0 for each in report.times)


class SilentPrograms:
    """Processes of a user that never take part."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        del gates, origin
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ends.append(theirs)
        return WorkerProcess(label, UserProcess(os.getpid()), Channel[FromWorker](ours, get_args(FromWorker)), clock)

    def close(self) -> None:
        for each in self.ends:
            each.close()


def test_nothing_is_changed_before_the_processes_of_a_user_take_part() -> None:
    made, progress = ensemble(TWO, MACHINE, timeout=0.1), SafeProgress(Progress())
    with Workers(made, progress, lambda: 0, Peers(), SilentPrograms()) as workers:
        workers.resume()
        with pytest.raises(ExchangeError, match=r"did not take part within 0.1 s; nothing was changed") as refused:
            workers.switch("awake")
        assert refused.value.code == "changing"  # of a code that leaves a client its connection, and its leases


def test_each_round_needs_all_processes_of_a_user_which_go_on_with_their_programs_after_it() -> None:
    """An answer to the round before does not count."""
    made, programs = ensemble(TWO, MACHINE, timeout=0.1), SilentPrograms()
    with Workers(made, SafeProgress(Progress()), lambda: 0, Peers(), programs) as workers:
        server, reader = (Channel[Any](end, TO_WORKER) for end in programs.ends)
        workers.resume()
        for number in (1, 2):
            server.send(Attending(number))
            with pytest.raises(ExchangeError, match=r"^reader did not take part"), workers.attended("asleep"):
                pytest.fail("it is not there")
            reader.send(Attending(number))
        for each in (server, reader):
            each.send(Attending(3))
        with workers.attended("asleep"), workers.attended("awake"):
            pass
        for each in (server, reader):
            found: list[object] = []
            while len(found) < 7 and (received := each.receive()):
                found += [received.message] if received.message != KeepAlive() else []
            assert found == [Resume(1), *(step for at in (1, 2, 3) for step in (Attend(at, "asleep"), Resume(1)))]


def test_processes_of_a_user_do_not_go_on_after_a_change_that_has_broken_the_layout() -> None:
    """Some of their memory may be missing."""
    made, programs = ensemble(TWO, MACHINE), SilentPrograms()
    with Workers(made, SafeProgress(Progress()), lambda: 0, Peers(), programs) as workers:
        channels = [Channel[Any](end, TO_WORKER) for end in programs.ends]
        workers.resume()
        for broken in (False, True):
            for each in channels:
                each.send(Attending(1 + broken))
            with pytest.raises(ChangeFailed), workers.attended("asleep"):
                raise ChangeFailed("the other process has ended", broken=broken)
        for worker in workers.workers.values():
            worker.take_down("over")
        for channel in channels:
            found: list[object] = []
            while TakeDown("over") not in found and (received := channel.receive()):
                found += [received.message] if received.message != KeepAlive() else []
            assert found == [Resume(1), Attend(1, "asleep"), Resume(1), Attend(2, "asleep"), TakeDown("over")]


def test_a_refused_change_has_the_hint_of_the_process_that_refuses_it() -> None:
    with pytest.raises(ChangeRefused, match=r"^b: no room \(hint: free some\)$") as refused:
        require_planned({"a": ChangeResult(), "b": ChangeResult("no room", "free some")})
    assert (refused.value.hint, refused.value.exit_code) == ("free some", 4)


class OneProgram(SilentPrograms):
    """Processes of which the system starts only the first."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        if self.ends:
            raise BlockingIOError(errno.EAGAIN, "too many")
        return super().process(label, gates, clock, origin)

    def close(self) -> None:
        super().close()
        self.closed = True


def test_nothing_is_left_of_processes_of_which_the_second_is_not_started() -> None:
    before, programs = open_descriptors(), OneProgram()
    workers = Workers(ensemble(TWO, MACHINE), SafeProgress(Progress()), lambda: 0, Peers(), programs)
    with pytest.raises(NotStarted, match=r"^process 2 of the layout cannot be started"), workers:
        pytest.fail("it was started")
    assert (programs.closed, open_descriptors()) == (True, before)


def test_a_process_of_a_user_hears_why_the_layout_ends_and_has_the_report_of_all() -> None:
    made, programs = ensemble(TWO, MACHINE, timeout=1.0), SilentPrograms()
    with Workers(made, SafeProgress(Progress()), lambda: 0, Peers(), programs) as workers:
        server = Channel[Any](programs.ends[0], TO_WORKER)
        programs.ends[1].close()
        while not workers.watch():
            pass
        server.send(Leave())
        server.send(WorkerFinished(REPORT))
        workers.take_down()
        report = workers.report()
        found = [received.message for _ in range(2) if (received := server.receive())]
    pid = os.getpid()
    reason = f"process reader has ended (process {pid}, starting)"
    assert found == [TakeDown(reason, True, "reader", pid), Ended(report)]
    assert report.failure
    assert (report.outcome, report.failure.error) == ("failed", "process reader has ended")
    assert [(each.name, each.outcome) for each in report.processes] == [("server", "taken down"), ("reader", "died")]


class Answering(SilentPrograms):
    """Processes of a user that take part, and answer each command whenever the conductor waits, except the silent ones.

    Time passes as it waits. `heard` has what each has received, without heartbeats.
    """

    def __init__(self, checks: Checks, silent: Collection[str] = ()) -> None:
        super().__init__()
        self.heard: dict[str, list[Any]] = {"server": [], "reader": []}
        self.alive = False
        self.moment = 0.0
        self.refusal: str | None = None
        self._checks, self._silent = checks, silent

    def conduct(self, made: Ensemble) -> Workers:
        system = replace(made.system, now=lambda: self.moment, wait=self._wait)
        return Workers(replace(made, system=system), SafeProgress(Progress()), lambda: 0, Peers(), self)

    def _wait(self, any_of: Collection[Any], seconds: float | None, writable: Collection[Any] = ()) -> bool:
        self.moment += 0.25
        for label, end in zip(self.heard, self.ends, strict=True):
            if end.fileno() >= 0:
                self._answer(label, Channel[Any](end, TO_WORKER))
        return wait_readable(any_of, 0 if seconds else seconds, writable)

    def _answer(self, label: str, channel: Channel[Any]) -> None:
        if self.alive:
            channel.send(StepsDone(0))
        while channel.wait(0) and (received := channel.receive()):
            self.heard[label] += [received.message] if received.message != KeepAlive() else []
            if isinstance(received.message, Attend):
                channel.send(Attending(received.message.number))
            elif isinstance(received.message, HandleRequest):
                channel.send(HandleAnswer(received.message.requester, error="there is none"))
            elif isinstance(received.message, Lend):
                channel.send(ChangeResult(self.refusal, code="absent") if self.refusal else Lent((7,)))
            elif isinstance(received.message, get_args(Command)) and label not in self._silent:
                refused = self.refusal if isinstance(received.message, PlanChange) else None
                channel.send(ChangeResult(refused, checks=self._checks))


AS_DECLARED, DIFFERENT = Checks((), (), 0), Checks((), (), 1)


@pytest.mark.parametrize(
    ("checks", "check", "again"), [(AS_DECLARED, "fast", 0), (AS_DECLARED, "full", 1), (DIFFERENT, "fast", 1)]
)
def test_a_switch_to_the_present_state_is_made_again_for_a_full_check_or_unless_all_was_as_declared(
    checks: Checks, check: Check, again: int
) -> None:
    programs = Answering(checks)
    with programs.conduct(ensemble(TWO, MACHINE)) as workers:
        workers.resume()
        for times in (1, 1 + again):
            assert workers.switch("awake", {"server.w", "server.b"}, check=check).different == 2 * checks.different
            assert [programs.heard[label].count(EndChange()) for label in programs.heard] == [times] * 2
    plans = [each for each in programs.heard["reader"] if isinstance(each, PlanChange)]
    assert plans == [PlanChange("awake", check, ("server.b", "server.w"))] * (1 + again)


def test_contexts_that_were_retained_for_a_plan_are_released_in_all_processes_if_one_refuses_it() -> None:
    programs = Answering(AS_DECLARED)
    programs.refusal = "no room"
    with programs.conduct(ensemble(TWO, MACHINE)) as workers:
        workers.resume()
        with pytest.raises(ChangeRefused, match=r"^server: no room; reader: no room$"):
            workers.switch("awake")
    assert [[*map(type, heard)].count(Hold) for heard in programs.heard.values()] == [1, 1]


def test_objects_are_lent_by_the_process_of_their_export_whose_error_keeps_its_code() -> None:
    programs = Answering(AS_DECLARED)
    with programs.conduct(ensemble(TWO, MACHINE)) as workers:
        workers.resume()
        workers.recheck()
        assert (workers.lend("server.w", 1), workers.lent("server.w")) == ((7,), (7,))
        workers.take_back("server.w", [7])
        programs.refusal = "none is left"
        with pytest.raises(ExchangeError, match="none is left") as refused:
            workers.lend("server.w", 2)
        with pytest.raises(MemtopoError, match="process server does not give w: there is none"):
            workers.request_handles("server", "w", 0, 1)
    assert (refused.value.code, [*map(type, programs.heard["server"])][-2:]) == ("absent", [Attend, HandleRequest])
    asked = Lend("w", 1), Lend("w", listed=True), Lend("w", back=(7,)), Lend("w", 2)
    assert [each for each in programs.heard["server"] if isinstance(each, Lend)] == [*asked]


def test_a_process_of_a_user_that_leaves_requests_a_stop() -> None:
    programs = SilentPrograms()
    with Workers(ensemble(TWO, MACHINE), SafeProgress(Progress()), lambda: 0, Peers(), programs) as workers:
        assert workers.watch() == 0
        Channel[Any](programs.ends[0], TO_WORKER).send(Leave())
        until(lambda: workers.watch() == signal.SIGTERM)


def test_a_process_of_a_user_that_owes_an_answer_for_too_long_ends_the_layout() -> None:
    programs = Answering(AS_DECLARED, silent=["server"])
    with programs.conduct(ensemble(TWO, MACHINE, timeout=1.0)) as workers:
        workers.resume()
        with pytest.raises(MemtopoError, match=r"^process server has ended$"):
            workers.recheck()
        assert (workers.watch(), workers.workers["server"].death) == (-1, "was silent for 1 s")
        with pytest.raises(MemtopoError, match="is about to be taken down"):
            workers.handle("server.w", 0)


class Leisurely(Answering):
    """Processes of a user whose programs leave long after the layout has ended."""

    def _answer(self, label: str, channel: Channel[Any]) -> None:
        super()._answer(label, channel)
        if self.moment > 1000:
            channel.send(WorkerFinished(REPORT))


def test_processes_of_a_user_take_down_when_their_programs_leave_however_long_that_takes() -> None:
    programs = Leisurely(AS_DECLARED)
    with programs.conduct(ensemble(TWO, MACHINE, timeout=1.0)) as workers:
        workers.take_down()
        assert [each.outcome for each in workers.report().processes] == ["ok"] * 2


class Deaf:
    """A worker that is alive, and does not take down, until it is killed."""

    pid = 0

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def signal(self, number: signal.Signals) -> bool:
        if number == signal.SIGKILL:
            self._end.close()
        return True

    def end(self, seconds: float) -> int:
        del seconds
        return -signal.SIGKILL


class DeafWorkers(Answering):
    """Workers in place of processes of a user."""

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        found = super().process(label, gates, clock, origin)
        return WorkerProcess(label, Deaf(self.ends[-1]), found.channel, clock)


def test_a_worker_without_a_command_may_be_silent() -> None:
    programs = DeafWorkers(AS_DECLARED)
    with programs.conduct(ensemble(TWO, MACHINE, timeout=1.0)) as workers:
        Channel[Any](programs.ends[1], TO_WORKER).send(WorkerReady(0, 0))
        for _ in range(8):
            workers.watch()
        assert workers.lend("server.w", 1) == (7,)
        assert not any(each.death for each in workers.workers.values())


def test_a_change_may_be_given_up_after_the_end_of_a_process() -> None:
    """Which the next command finds."""
    programs = DeafWorkers(AS_DECLARED)
    with programs.conduct(ensemble(TWO, MACHINE)) as workers:
        change = HeldLayout(workers, "", lambda _source, before: Revision(before, "")).switch("awake")
        programs.ends[1].close()
        while not workers.watch():
            pass
        change.give_up()
        with pytest.raises(ChangeFailed, match="process reader was killed by SIGKILL"):
            change.make(full=True)


def test_workers_that_are_alive_and_do_not_take_down_are_killed_after_twice_the_timeout() -> None:
    programs = DeafWorkers(AS_DECLARED)
    programs.alive = True
    with programs.conduct(ensemble(TWO, MACHINE, timeout=2.0)) as workers:
        workers.take_down()
        assert 2 * 2 + SPARE < programs.moment < 2 * 2 + SPARE + 2
        assert {each.death for each in workers.workers.values()} == {
            "did not take down in time and was killed by SIGKILL"
        }


def test_a_switch_that_a_process_does_not_survive_leaves_the_layout_broken() -> None:
    def hold(made: Workers) -> HoldResult:
        os.kill(made.workers["engine"].process.pid, signal.SIGKILL)
        with pytest.raises(
            ChangeFailed, match=r"process engine was killed by SIGKILL .*; the layout is taken"
        ) as failed:
            made.switch("asleep")
        assert failed.value.broken is True
        return HoldResult()

    report = processes.apply(ensemble(Path(__file__).with_name("sleeping.yaml"), MACHINE), hold=hold)
    assert [each.outcome for each in report.processes] == ["taken down", "died"]


def test_a_switch_of_a_layout_whose_processes_have_all_ended_is_refused() -> None:
    """Also if their ends have been noticed before: nobody is left who could answer."""

    def hold(made: Workers) -> HoldResult:
        for each in made.workers.values():
            os.kill(each.process.pid, signal.SIGKILL)
        until(lambda: made.watch() < 0 and all(each.over for each in made.workers.values()))
        with pytest.raises(ChangeFailed, match=r"was killed by SIGKILL .*; the layout is taken down") as failed:
            made.switch("asleep")
        assert (failed.value.broken, made.state, made.generation) == (True, "awake", 1)
        return HoldResult()

    report = processes.apply(ensemble(Path(__file__).with_name("sleeping.yaml"), MACHINE), hold=hold)
    assert {each.outcome for each in report.processes} == {"died"}


def test_a_check_of_a_switch_that_fails_in_one_process_brings_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has six mappings to query before the switch, and again after it."""
    monkeypatch.setenv("MEMTOPO_CRASH", "engine:mem_retain_allocation_handle#7:CUDA_ERROR_UNKNOWN:self")
    program = Path(__file__).with_name("signalled_worker.py")

    def hold(made: Workers) -> HoldResult:
        layout = HeldLayout(made, "", lambda _source, before: Revision(before, ""))
        assert not layout.switch("asleep").make(full=False).different
        with pytest.raises(ChangeFailed, match=r"engine: check of .*; the layout is asleep, as before"):
            layout.switch("awake").make(full=False)
        assert (layout.state, layout.check().different) == ("asleep", 0)
        assert not layout.switch("awake").make(full=False).different
        return HoldResult()

    made = replace(
        ensemble(Path(__file__).with_name("sleeping.yaml"), MACHINE), worker=(sys.executable, "-P", str(program))
    )
    assert processes.apply(made, hold=hold).outcome == "ok"
