"""A process that is interrupted during its work undoes everything, reports it, and exits as interrupted."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.command_line import MEMTOPO, QUICKSTART, CommandResult, environment, without_crash
from tests.helpers.python_process import PythonProcess

BIG = """memtopo: 1
name: big
ranges: {pages: {size: 80000MiB}}
chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: 40000}}
map: {pages: [page]}
access: {pages: {gpu0: rw, gpu1: rw}}
"""


class Running:
    """An `apply` of a spec that takes seconds, whose progress the test watches on a terminal of its own."""

    def __init__(self, spec: Path) -> None:
        self._terminal, theirs = pty.openpty()
        command = [*MEMTOPO, "apply", str(spec), "--machine=h200x2", "--json"]
        self.process = PythonProcess(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=environment(COLUMNS="80", MEMTOPO_PROGRESS="auto"),
        )
        os.close(theirs)
        self.shown = b""

    def wait_for(self, phase: bytes) -> None:
        """Wait until the line of progress speaks of a phase."""
        while phase not in self.shown:
            assert self._more(60), self.shown

    def wait_for_teardown(self) -> None:
        """Wait until the line of progress speaks of the teardown, or until all is over without its being drawn."""
        while b"take down" not in self.shown and self._more(60):
            pass

    def hang_up(self) -> None:
        """Close the terminal."""
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
def running(tmp_path: Path) -> Running:
    """A run of a big spec that has just begun."""
    spec = tmp_path / "big.yaml"
    spec.write_text(BIG)
    return Running(spec)


def undone(result: CommandResult) -> bool:
    """Return true if a report counts no leak, and as many descriptors as before."""
    left = json.loads(result.out)["left"]
    return (left["ledger_after"], left["fds_after"]) == (left["ledger_before"], left["fds_before"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", [b" of ", b"check"])
def test_signals_exit_with_129_130_and_143_after_undoing(
    running: Running, number: signal.Signals, phase: bytes
) -> None:
    """While building and while checking; the report says that nothing is left."""
    running.wait_for(phase)
    running.process.send_signal(number)
    result = running.end()
    assert result.status == 128 + number
    assert (result.document["outcome"], result.document["exit_code"]) == ("interrupted", 128 + number)
    assert undone(result)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_repeated_signals_do_not_cut_teardown_or_report(running: Running, number: signal.Signals) -> None:
    running.wait_for(b"check")
    running.nag(number)
    result = running.end()
    assert result.status == 128 + number
    assert result.document["outcome"] == "interrupted"
    assert undone(result)


def test_exit_status_is_that_of_the_first_signal(running: Running) -> None:
    running.wait_for(b" of ")
    running.process.send_signal(signal.SIGTERM)
    running.wait_for_teardown()
    running.nag(signal.SIGINT)
    assert running.end().status == 143


def test_a_vanished_terminal_stops_neither_run_nor_teardown(tmp_path: Path) -> None:
    spec = tmp_path / "big.yaml"
    spec.write_text(BIG.replace("80000", "20000").replace("40000", "10000"))
    running = Running(spec)
    running.wait_for(b" of ")
    running.hang_up()
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
