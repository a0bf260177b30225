"""Progress: its state as data, the lines on a terminal, and the lines in a log."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from contextlib import suppress

import pytest

from memtopo.output.progress import ProgressLines, ProgressLog, amount, progress
from memtopo.plans.progress import CountedProgress, PhasePart, PhaseState, Progress

GIB = 1 << 30


class Terminal(io.StringIO):
    """A terminal as far as its writers can tell."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Clock()


def state(done: int, total: int, seconds: float, *, in_bytes: bool = False) -> PhaseState:
    return PhaseState("map", in_bytes, PhasePart(done, total), {}, seconds)


def words(shown: PhaseState, *, simulated: bool = False) -> str:
    return amount(shown.whole, shown, simulated=simulated)


def test_nothing_is_shown_with_the_variable_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_PROGRESS", "none")
    stream = Terminal()
    with progress(stream) as hooks:
        hooks.phase("create", 10)
        assert type(hooks) is Progress
    assert stream.getvalue() == ""


def test_a_terminal_gets_lines_and_a_pipe_or_dumb_terminal_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMTOPO_PROGRESS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream, kind in ((Terminal(), ProgressLines), (io.StringIO(), ProgressLog)):
        with progress(stream) as hooks:
            assert type(hooks) is kind
    monkeypatch.setenv("TERM", "dumb")
    with progress(Terminal()) as hooks:
        assert type(hooks) is ProgressLog


def test_progress_of_a_long_run_is_shown_and_removed(clock: Clock) -> None:
    stream = Terminal()
    hooks = ProgressLines(stream, clock)
    hooks.phase("create [red]", 8000)
    clock.now = 0.5
    hooks.advance(1234)
    hooks.end()
    assert "create [red]" in stream.getvalue()
    assert "1,234 of 8,000" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[1A\r\x1b[J")


def test_progress_is_erased_before_other_output_of_the_process(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn again below it, with the cursor at its start."""
    monkeypatch.delenv("MEMTOPO_PROGRESS", raising=False)
    for name in ("stdout", "stderr"):
        stream = Terminal()
        monkeypatch.setattr(f"sys.{name}", stream)
        with progress(stream) as hooks:
            assert isinstance(hooks, ProgressLines)
            hooks.phase("create", 8)
            hooks._show(state(1, 8, 0.5))
            print("a warning", file=getattr(sys, name))
            hooks._show(state(2, 8, 0.5))
        _, before, after, end = stream.getvalue().split("\r\x1b[J", 3)
        assert before.endswith("\x1b[1A")
        assert after.startswith("a warning\n")
        assert end.endswith("\x1b[1A\r\x1b[J")


def test_progress_of_a_short_run_is_not_shown(clock: Clock) -> None:
    for stream in (Terminal(), io.StringIO()):
        hooks = (ProgressLines if stream.isatty() else ProgressLog)(stream, clock)
        hooks.phase("create", 8000)
        hooks.advance(8000)
        hooks.end()
        assert stream.getvalue() == ""


def test_a_phase_of_one_long_step_moves_without_a_call_of_its_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread draws."""
    monkeypatch.delenv("MEMTOPO_PROGRESS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    drawn = threading.Event()

    class Watched(Terminal):
        def write(self, text: str) -> int:
            if "open" in text:
                drawn.set()
            return super().write(text)

    with progress(Watched()) as hooks:
        hooks.phase("open", 1)
        assert drawn.wait(30)


def test_a_terminal_that_is_gone_ends_the_progress_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMTOPO_PROGRESS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    tried = threading.Event()

    class Gone(Terminal):
        def isatty(self) -> bool:
            if threading.current_thread() is not threading.main_thread():
                tried.set()
                raise OSError
            return True

    with progress(Gone()) as hooks:
        hooks.phase("open", 1)
        assert tried.wait(30)
    assert not [each for each in threading.enumerate() if each.name == "progress"]


def test_a_log_has_one_line_for_each_phase_that_lasts_a_second(clock: Clock) -> None:
    stream = io.StringIO()
    hooks = ProgressLog(stream, clock, simulated=True)
    for name, seconds in (("create", 0.75), ("map", 1.5), ("check", 32.0)):
        hooks.phase(name, 800)
        for _ in range(8):
            clock.now += seconds / 8
            hooks.advance(100)
    hooks.end()
    assert stream.getvalue().splitlines() == [
        "memtopo: map: 600 of 800, 1 s, 1 s left",
        "memtopo: check: 100 of 800, 4 s, 28 s left",
    ]


def test_a_long_phase_that_comes_again_has_a_line_in_a_log_again(clock: Clock) -> None:
    stream = io.StringIO()
    hooks = ProgressLog(stream, clock, simulated=True)
    for _ in range(2):
        hooks.phase("check", 1)
        clock.now += 2
        hooks.advance(1)
        hooks.end()
    assert stream.getvalue() == "memtopo: check: 1 of 1, 2 s\n" * 2


@pytest.mark.timeout(30)
def test_a_full_pipe_that_nobody_reads_gets_a_line_later_and_delays_nothing(clock: Clock) -> None:
    incoming, outgoing = os.pipe()
    os.set_blocking(outgoing, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(outgoing, b"." * select.PIPE_BUF)
    os.set_blocking(outgoing, True)
    with os.fdopen(incoming, "rb") as read, os.fdopen(outgoing, "w") as stream:
        hooks = ProgressLog(stream, clock, simulated=True)
        hooks.phase("map", 2)
        clock.now = 1.5
        hooks.advance(1)
        assert read.read(filled) == b"." * filled
        clock.now = 2.5
        hooks.advance(1)
        assert read.readline() == b"memtopo: map: 2 of 2, 2 s\n"


def test_several_processes_have_a_line_each_and_in_a_log_their_shares(clock: Clock) -> None:
    terminal, log = Terminal(), io.StringIO()
    for hooks in (ProgressLines(terminal, clock), ProgressLog(log, clock)):
        clock.now = 0.0
        hooks.phase("map", 0, {"server": 0, "reader": 0, "idle": 0})
        hooks.extend(10, "reader")
        hooks.extend(30, "server")
        clock.now = 2.0
        hooks.advance(5, "reader")
        hooks.end()
    lines = terminal.getvalue()
    assert lines.index("5 of 40") < lines.index("server") < lines.index("reader")
    assert "50%" in lines
    assert "idle" not in lines
    assert log.getvalue() == "memtopo: map: 5 of 40, 2.5/s, 2 s, 14 s left; server 0%; reader 50%\n"


def test_of_many_processes_those_with_the_least_done_are_listed(clock: Clock) -> None:
    log = io.StringIO()
    hooks = ProgressLog(log, clock)
    hooks.phase("map", 0, {f"pe.{n}": 0 for n in range(20)})
    for n in range(20):
        hooks.extend(100, f"pe.{n}")
    for n in range(20):
        clock.now = n / 10
        hooks.advance(100 - n, f"pe.{n}")
    assert log.getvalue().endswith("; ".join(f"pe.{n} 0%" for n in range(11, 19)) + "\n")


@pytest.mark.parametrize("simulated", [False, True])
def test_a_rate_is_shown_only_if_it_is_measured(simulated: bool) -> None:
    """A simulator has none."""
    size = words(state(2 * GIB, 8 * GIB, 2.0, in_bytes=True), simulated=simulated)
    steps = words(state(200, 800, 2.0), simulated=simulated)
    assert size == f"2 GiB of 8 GiB, {'' if simulated else '1.07 GB/s, '}2 s, 6 s left"
    assert steps == f"200 of 800, {'' if simulated else '100/s, '}2 s, 6 s left"


def test_nothing_is_said_of_what_is_not_known() -> None:
    """No total, no time left before the first step, and no time of a short phase."""
    assert words(state(0, 0, 0.5)) == ""
    assert words(state(0, 0, 5.0)) == "5 s"
    assert words(state(0, 8, 5.0)) == "0 of 8, 5 s"
    assert words(state(4, 8, 0.5)) == "4 of 8"
    assert words(state(1, 1, 5.0)) == "1 of 1, 0.2/s, 5 s"
    assert words(state(8, 8, 5.0)) == "8 of 8, 1.6/s, 5 s"


def test_counts_of_one_phase_do_not_reach_another_one() -> None:
    hooks = CountedProgress()
    hooks.extend(7)
    hooks.advance(7)
    assert hooks.state is None
    hooks.phase("create", 3)
    hooks.advance(3)
    hooks.volume("verify", 100, {"a": 60, "b": 40})
    hooks.extend(7, "a")  # steps, of a phase in bytes
    hooks.advance(30, "a")
    found = hooks.state
    assert found
    assert (found.name, found.in_bytes, found.whole) == ("verify", True, PhasePart(30, 100))
    assert found.processes == {"a": PhasePart(30, 60), "b": PhasePart(0, 40)}
    hooks.end()
    hooks.advance(1)
    assert hooks.state is None


def test_the_thread_sleeps_between_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout may be held for days."""
    monkeypatch.delenv("MEMTOPO_PROGRESS", raising=False)
    with progress(io.StringIO()) as hooks:
        assert isinstance(hooks, ProgressLog)
        for begin in (hooks.phase, hooks.volume):
            begin("map", 1)
            assert hooks.in_phase.is_set()
            hooks.end()
            assert not hooks.in_phase.is_set()
