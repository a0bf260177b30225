"""A process that is interrupted during its work undoes everything, reports it, and exits as interrupted."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from memtopo.cli.process import Stopper
from memtopo.common.signals import ENDING
from tests.helpers.command_line import MEMTOPO, QUICKSTART, ROOT, CommandResult, environment, without_crash
from tests.helpers.python_process import PythonProcess

SPEC = """memtopo: 1
name: pages
ranges: {pages: {size: 128MiB}}
chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: 64}}
map: {pages: [page]}
access: {pages: {gpu0: rw, gpu1: rw}}
"""
PHASES = {"build": "mem_map#30", "check": "mem_get_access#20"}
"""A driver call of each phase."""


class Running:
    """An `apply` with progress on a terminal of its own; it stops before some driver calls (`stopping_program`)."""

    def __init__(self, spec: Path, *stops: str) -> None:
        self._terminal, theirs = pty.openpty()
        command = [sys.executable, "-m", "tests.cli.stopping_program", ",".join(stops)]
        self.process = PythonProcess(
            [*command, "apply", str(spec), "--machine=h200x2", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            cwd=ROOT,
            env=environment(COLUMNS="80", MEMTOPO_PROGRESS="auto"),
        )
        os.close(theirs)
        self.shown = b""

    def wait_for_stop(self) -> None:
        """Wait until the process stops before a call."""
        found = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert found, "it is no child"
        assert found.si_code == os.CLD_STOPPED, "it has ended"
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self, number: int = 0) -> None:
        """Continue the process, which first gets a signal."""
        if number:
            self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)

    def hang_up(self) -> None:
        """Close the terminal, on which there is some progress."""
        while b" of " not in self.shown:
            assert self._more(60), self.shown
        os.close(self._terminal)
        self._terminal = -1

    def nag(self, number: int) -> None:
        """Send a signal again and again until the process has ended."""
        while self.process.poll() is None:
            self.process.send_signal(number)
            self._more(0.001)

    def end(self) -> CommandResult:
        """Wait for the end, and give what stood on stdout."""
        out, _ = self.process.communicate(timeout=60)
        if self._terminal >= 0:
            os.close(self._terminal)
        return without_crash(CommandResult(self.process.returncode, out.decode(), self.shown.decode(errors="replace")))

    def _more(self, patience: float) -> bool:
        if not select.select([self._terminal], [], [], patience)[0]:
            return False
        try:
            self.shown += os.read(self._terminal, 65536)
        except OSError:  # the process has ended
            return False
        return True


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    found = tmp_path / "pages.yaml"
    found.write_text(SPEC)
    return found


def undone(result: CommandResult) -> bool:
    """Return true if a report counts no leak, and as many descriptors as before."""
    left = json.loads(result.out)["left"]
    return (left["ledger_after"], left["fds_after"]) == (left["ledger_before"], left["fds_before"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", PHASES)
def test_signals_exit_with_129_130_and_143_after_undoing(spec: Path, number: signal.Signals, phase: str) -> None:
    """While building and while checking; the report says that nothing is left."""
    running = Running(spec, PHASES[phase])
    running.wait_for_stop()
    running.go_on(number)
    result = running.end()
    assert result.status == 128 + number
    assert (result.document["outcome"], result.document["exit_code"]) == ("interrupted", 128 + number)
    assert undone(result)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_repeated_signals_do_not_cut_teardown_or_report(spec: Path, number: signal.Signals) -> None:
    """In each half of the teardown, and then until the process has ended."""
    running = Running(spec, PHASES["check"], "mem_unmap#1", "mem_release#30")
    for _ in range(3):
        running.wait_for_stop()
        running.go_on(number)
    running.nag(number)
    result = running.end()
    assert result.status == 128 + number
    assert result.document["outcome"] == "interrupted"
    assert undone(result)


def test_exit_status_is_that_of_the_first_signal(spec: Path) -> None:
    running = Running(spec, PHASES["build"], "mem_unmap#1")
    running.wait_for_stop()
    running.go_on(signal.SIGTERM)
    running.wait_for_stop()
    running.go_on(signal.SIGINT)
    running.nag(signal.SIGINT)
    result = running.end()
    assert result.status == 143
    assert undone(result)


@pytest.mark.parametrize("ending", [False, True])
def test_a_hangup_that_is_ignored_stays_ignored_and_handlers_stay_after_a_signal_that_ends(ending: bool) -> None:
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Stopper(ending=ending):
            pass
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        with Stopper(ending=ending) as stopper:
            signal.raise_signal(signal.SIGHUP)
            assert (stopper.signal(), Stopper.stopped()) == (0, False)
            signal.raise_signal(signal.SIGTERM)
            assert (stopper.signal(), Stopper.stopped()) == (signal.SIGTERM, True)
        assert (signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]) is not ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_vanished_terminal_stops_neither_run_nor_teardown(spec: Path) -> None:
    running = Running(spec, PHASES["build"])
    running.wait_for_stop()
    running.hang_up()
    running.go_on()
    result = running.end()
    assert (result.status, result.document["outcome"]) == (0, "ok")
    assert undone(result)


def interrupted(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Send SIGINT until the process ends: one that comes just before a read is noticed only after it."""
    for _ in range(120):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=0.5)
    raise AssertionError("still running")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_before_building_exits_with_130_and_one_line(tmp_path: Path, as_json: bool) -> None:
    """With --json there is a document too."""
    pipe = tmp_path / "machine.json"
    os.mkfifo(pipe)
    command = [*MEMTOPO, "apply", QUICKSTART, "--machine", str(pipe), *(["--json"] if as_json else [])]
    process = PythonProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    writer = os.open(pipe, os.O_WRONLY)  # returns once memtopo has opened the other end
    out, err = interrupted(process)
    os.close(writer)
    result = without_crash(CommandResult(process.returncode, out.decode(), err.decode()))
    assert (result.status, result.err) == (130, "memtopo: error: interrupted\n")
    assert result.out == "" if not as_json else result.document["error"]["exit_code"] == 130
