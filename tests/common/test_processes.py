"""Children are spawned by one module; the clock does not count the time for which a process was stopped."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from memtopo.common.processes import (
    LONGEST_STEP,
    ProcessStat,
    RunningClock,
    die_with_parent,
    in_pid_namespace,
    inherited_socket,
    is_frozen,
    is_stopped,
    is_unmapped,
    memory_file,
    pid_namespace,
    process_stat,
    python_command,
    signal_on_parent_death,
    spawn,
    spawn_connected,
    standstill,
    start_hint,
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


def parent_and_variable(descriptor: str) -> None:
    """Entry of a child: send its session, its parent and a variable, and write to its standard error."""
    os.write(2, b"written")
    with inherited_socket(descriptor) as sock:
        sock.send(f"{os.getsid(0)} {os.getppid()} {os.environ.get('MEMTOPO_ADDED')}".encode())


@pytest.mark.parametrize("detached", [False, True])
def test_a_connected_child_has_its_variables_and_its_error_stream_and_if_it_is_detached_another_parent(
    detached: bool,
) -> None:
    command = python_command("tests.common.test_processes:parent_and_variable", detached=detached)
    process, sock = spawn_connected(command, stderr=subprocess.PIPE, environment={"MEMTOPO_ADDED": "yes"})
    with sock, process:
        assert process.stderr
        session, parent, variable = sock.recv(100).decode().split()
        assert (int(session), int(parent) != os.getpid(), variable) == (os.getsid(0), detached, "yes")
        assert process.stderr.read() == b"written"


def test_a_process_has_a_session_of_its_own_if_that_is_asked_for() -> None:
    command = ["/bin/sh", "-c", "cut -d' ' -f6 /proc/$$/stat"]
    for own in (False, True):
        with spawn(command, stdout=subprocess.PIPE, new_session=own) as process:
            assert process.stdout
            assert int(process.stdout.read()) == (process.pid if own else os.getsid(0))


def test_only_a_process_that_the_system_has_no_room_for_has_the_hint_of_its_limits() -> None:
    assert "ulimit -u" in str(start_hint(OSError(errno.EAGAIN, "")))
    assert start_hint(OSError(errno.ENOENT, "")) is None


def test_a_memory_file_is_read_from_its_beginning() -> None:
    fd = memory_file(b"content")
    assert os.read(fd, 100) == b"content"
    os.close(fd)


def test_a_process_does_nothing_without_the_parent_that_it_is_to_end_with() -> None:
    command = python_command("tests.common.test_processes:answer", parent=os.getppid())
    assert subprocess.run(command, check=False, stderr=subprocess.PIPE).stderr == b""


def end_with(parent: str) -> None:
    """Entry of a child that ends with a parent."""
    die_with_parent(int(parent))


def test_a_process_ends_at_once_if_its_parent_is_another_one_than_the_one_it_is_to_end_with() -> None:
    command = python_command("tests.common.test_processes:end_with")
    assert [spawn([*command, str(parent)]).wait() for parent in (os.getpid(), os.getppid())] == [0, 1]


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


@pytest.mark.parametrize(
    ("state", "stopped", "held_up"),
    [("S", False, ""), ("T", True, "is stopped (state T); continue it with 'kill -CONT 42'"), ("Z", False, ""),
     ("t", True, "is stopped by a debugger (state t); continue it there"), ("D", False, "waits in the kernel")],
)  # fmt: skip
def test_a_process_is_stopped_by_a_signal_or_in_a_debugger_or_held_up_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, stopped: bool, held_up: str
) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(f"42 (a) {state} 41 {' '.join(['0'] * 20)}\n")
    monkeypatch.setattr(process_stat, "__defaults__", (tmp_path,))
    assert (is_stopped(42), is_stopped(43)) == (stopped, False)
    assert ((standstill(42) or "").startswith(held_up), bool(standstill(42))) == (True, bool(held_up))
    assert standstill(43) is None


@pytest.mark.parametrize(
    ("groups", "file", "text", "frozen"),
    [
        ("0::/a", "a/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/a", "a/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("1:cpu:/a\n0::/a", "unified/a/cgroup.events", "frozen 1\n", True),
        ("1:cpu:/b\n2:freezer:/a", "freezer/a/freezer.state", "FROZEN\n", True),
        ("2:freezer:/a", "freezer/a/freezer.state", "THAWED\n", False),
        ("2:cpu:/a", "freezer/a/freezer.state", "FROZEN\n", False),
    ],
)
def test_a_process_is_frozen_with_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, file: str, text: str, frozen: bool
) -> None:
    for name, content in (("proc/42/cgroup", groups), (f"groups/{file}", text)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr("memtopo.common.processes.PROC", tmp_path / "proc")
    monkeypatch.setattr("memtopo.common.processes._CGROUPS", tmp_path / "groups")
    assert (is_frozen(42), is_frozen(43)) == (frozen, False)


def test_what_proc_does_not_say_of_users_and_pid_namespaces_is_none(tmp_path: Path) -> None:
    assert (pid_namespace(tmp_path), in_pid_namespace(tmp_path), is_unmapped(7, tmp_path)) == (None, False, False)
    for name in ("sys/kernel", "self/ns"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    assert in_pid_namespace(tmp_path)
    for text, unmapped in (("7\n", True), ("8\n", False), ("none", False)):
        (tmp_path / "sys/kernel/overflowuid").write_text(text)
        assert is_unmapped(7, tmp_path) == unmapped
