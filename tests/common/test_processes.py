"""Children are spawned by one module; the clock does not count the time for which a process was stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from pathlib import Path

import pytest

from memtopo.common.processes import (
    LONGEST_STEP,
    ProcessStat,
    RunningClock,
    inherited_socket,
    memory_file,
    process_stat,
    python_command,
    signal_on_parent_death,
    spawn,
    spawn_connected,
)


def answer(descriptor: str) -> None:
    """Entry of a child: send back what comes through its socket."""
    with inherited_socket(descriptor) as sock:
        assert not sock.get_inheritable()
        sock.send(sock.recv(100))


def test_the_working_directory_is_not_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "memtopo").mkdir()
    (tmp_path / "memtopo" / "__init__.py").write_text("raise SystemExit(9)")
    command = [*python_command("memtopo.common.text:signal_name"), "none"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0


def test_a_connected_child_has_the_other_end_of_its_socket() -> None:
    process, sock = spawn_connected(python_command("tests.common.test_processes:answer"))
    with sock:
        sock.send(b"through the socket")
        assert sock.recv(100) == b"through the socket"
        assert sock.recv(100) == b""
    assert process.wait() == 0


def test_a_child_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    try:
        spawn_connected(["/nowhere/python"])
    except OSError:
        assert os.listdir("/proc/self/fd") == before
    else:
        raise AssertionError("it was started")


def test_variables_are_added_to_the_environment_or_replace_those_of_it() -> None:
    command = ["/bin/sh", "-c", 'echo "$MEMTOPO_ADDED" "$HOME" "$PATH"']
    with spawn(command, stdout=subprocess.PIPE, environment={"MEMTOPO_ADDED": "yes", "HOME": "/new"}) as process:
        assert process.stdout
        assert process.stdout.read().decode() == f"yes /new {os.environ['PATH']}\n"


def test_a_memory_file_is_read_from_its_beginning() -> None:
    fd = memory_file(b"content")
    assert os.read(fd, 100) == b"content"
    os.close(fd)


def test_a_process_does_nothing_without_the_parent_that_it_is_to_end_with() -> None:
    command = python_command("tests.common.test_processes:answer", parent=os.getppid())
    assert subprocess.run(command, check=False, stderr=subprocess.PIPE).stderr == b""


def test_a_signal_is_requested_for_the_death_of_a_parent_that_has_not_died_already() -> None:
    prctl, requested = ctypes.CDLL(None).prctl, ctypes.c_int()
    try:
        assert signal_on_parent_death(signal.SIGTERM)
        assert signal_on_parent_death(signal.SIGTERM, os.getppid())
        assert not signal_on_parent_death(signal.SIGTERM, os.getpid())
        prctl(2, ctypes.byref(requested), 0, 0, 0)  # PR_GET_PDEATHSIG
        assert requested.value == signal.SIGTERM
    finally:
        prctl(1, 0, 0, 0, 0)


def test_time_between_two_readings_counts_up_to_its_limit() -> None:
    readings = iter((10.0, 10.25, 10.5, 3610.5, 3610.75))
    clock = RunningClock(lambda: next(readings))
    assert [clock.time() for _ in range(4)] == [0.25, 0.5, 0.5 + LONGEST_STEP, 0.75 + LONGEST_STEP]


@pytest.mark.parametrize("state", ["S", "T", "Z", "X"])
def test_a_process_has_a_name_with_any_characters_and_facts_until_it_has_ended(tmp_path: Path, state: str) -> None:
    """A zombie has ended."""
    fields = [state, "41", *["0"] * 4, str(0x00200000), *["0"] * 12, "99", "0"]
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(f"42 (a ) Z (b) {' '.join(fields)}\n")
    found = process_stat(42, tmp_path)
    assert found == (None if state in "ZX" else ProcessStat("a ) Z (b", state, 41, 99, is_kernel_thread=True))
    assert process_stat(43, tmp_path) is None
