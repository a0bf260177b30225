"""Holders as services: --detach, --ready-fd, --log, reloads by SIGHUP, and sockets that systemd passes."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memtopo.cli.service import HolderDied, HoldOptions, Service, _print_ready, opened_service, recorded_hangups
from memtopo.session.composition import Holding
from memtopo.sharing.claims import claim
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.state import HolderEvent
from tests.cli.conftest import InlineRunner
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import MEMTOPO, CommandResult, environment, run_memtopo, run_with_input, without_crash
from tests.helpers.full_disk import largest_files
from tests.helpers.holders import asked, gone, raw, until
from tests.helpers.processes import workers
from tests.helpers.python_process import PythonProcess, run_python

SPEC = """
memtopo: 1
name: kv
chunks: {page: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
exports: {pages: {chunk: page, via: fd}}
"""
LARGER = SPEC.replace("count: 2", "count: 4")
M = "--machine=h100x1"


@pytest.fixture
def spec(runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    found = tmp_path / "kv.yaml"
    found.write_text(SPEC)
    return found


@contextmanager
def holding(*arguments: str | Path, start: tuple[str, ...] = (), **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Hold a layout in the foreground; the first line of its output has been read."""
    command = [*start, *MEMTOPO, "apply", M, "--hold", "--json", *map(str, arguments)]
    variables = environment(**options.pop("variables", {}))
    with PythonProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, **options
    ) as process:
        assert process.stderr
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Next line of the log that has a text."""
    assert process.stderr
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"no line has {text!r}")


def report_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=PATIENCE)
    report = without_crash(CommandResult(process.returncode, out, err)).document
    assert (report["leaks"], report["left"]["fds_after"]) == ([], report["left"]["fds_before"])
    return report


def generation() -> int:
    with connect(endpoint("kv")) as client:
        return client.status().generation


@pytest.fixture
def detached() -> Iterator[Callable[..., tuple[CommandResult, int]]]:
    """Runs `apply --hold --detach`, and returns its result and the process of the holder, which ends with the test."""
    found: list[int] = []

    def run(*arguments: str | Path, stdin: str = "") -> tuple[CommandResult, int]:
        result = run_with_input(stdin.encode(), "apply", M, "--hold", "--detach", *map(str, arguments))
        assert result.status == 0, result.err
        with connect(endpoint("kv")) as client:
            pid = client.status().pid
        assert pid
        found.append(pid)
        return result, pid

    yield run
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until(partial(gone, pid))


def test_detach_returns_once_the_layout_is_served_and_the_holder_goes_on_in_its_own_session(
    spec: Path, runtime: Path, detached: Callable[..., tuple[CommandResult, int]]
) -> None:
    result, pid = detached(spec)
    log = runtime / "memtopo" / "kv.log"
    assert (result.out, log.stat().st_mode & 0o777) == ("", 0o600)
    assert result.err.endswith(f"its log is {log}\n")
    assert os.getsid(pid) == pid
    streams = [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)]
    assert streams == [os.devnull, str(log), str(log)]
    os.kill(pid, signal.SIGTERM)
    until(lambda: gone(pid))
    text = log.read_text()
    assert "memtopo: serving layout=kv" in text
    assert "memtopo: ending why=signal signal=SIGTERM" in text
    assert "ok: built, checked" in text


def test_detach_returns_while_the_processes_of_a_layout_go_on(
    tmp_path: Path, runtime: Path, detached: Callable[..., tuple[CommandResult, int]]
) -> None:
    """A pipe of the caller ends then: no process has it open."""
    spec = tmp_path / "several.yaml"
    one = "{ranges: {r: {size: 2MiB}}, chunks: {c: {location: gpu0, size: 2MiB}}, map: {r: [c]}}"
    spec.write_text(f"memtopo: 1\nname: kv\nprocesses: {{one: {one}, other: {one}}}\n")
    _, pid = detached(spec)
    log = runtime / "memtopo" / "kv.log"
    assert len(workers(pid)) == 2
    assert {str(Path(f"/proc/{each}/fd/2").readlink()) for each in workers(pid)} == {str(log)}


def test_detach_with_json_prints_the_layout_of_standard_input_and_appends_to_the_log_of_the_option(
    spec: Path, tmp_path: Path, detached: Callable[..., tuple[CommandResult, int]]
) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    result, pid = detached("-", "--json", "--log", log, stdin=spec.read_text())
    assert (result.document["memtopo_layout"], result.document["pid"]) == (1, pid)
    assert result.document["contexts"] == []
    assert log.read_text().startswith("before\n")


def test_a_detached_start_that_fails_has_its_diagnostics_and_exit_status(spec: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(SPEC.replace("2MiB", "3B"))
    result = run_memtopo("apply", wrong, M, "--hold", "--json", MEMTOPO_DETACH="1")
    assert (result.status, result.document["ok"]) == (1, False)
    assert "MT" in result.err
    with claim(endpoint("kv")):
        held = run_memtopo("apply", spec, M, "--hold", "--detach")
    assert (held.status, f"already held by process {os.getpid()}" in held.err) == (4, True)


def test_ctrl_c_while_a_detached_holder_starts_ends_it(spec: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "machine.json"
    os.mkfifo(pipe)
    command = [*MEMTOPO, "apply", str(spec), "--machine", str(pipe), "--hold", "--detach"]
    process = PythonProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    writer = os.open(pipe, os.O_WRONLY)  # returns once the holder has opened the other end
    with suppress(subprocess.TimeoutExpired):
        for _ in range(120):  # one that comes just before a read is noticed only after it
            process.send_signal(signal.SIGINT)
            process.wait(0.5)
            break
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, b"", b"memtopo: error: interrupted\n")
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)


def test_detach_and_its_options_are_refused_where_they_have_no_meaning(spec: Path, run_inline: InlineRunner) -> None:
    for options in (["--reload"], ["--log", "x"], ["--ready-fd", "9"], ["--detach"]):
        result = run_inline("apply", spec, M, *options)
        assert (result.status, "--hold" in result.err) == (2, True), options
    assert run_inline("apply", spec, M, "--hold", "--ready-fd", "999999").status == 2
    assert run_inline("apply", spec, M, "--hold", "--log", "/nowhere/x").status == 2
    refused = run_inline("apply", spec, M, "--hold", "--detach", "--ready-fd", "9")
    assert (refused.status, "hint: omit --ready-fd" in refused.err) == (2, True)
    assert run_inline("apply", spec, M, "--gpus", "0").status == 2
    assert f"write --log {spec.parent}/ for" in run_inline("apply", spec, M, "--hold", "--log", spec.parent).err


def test_terms_of_a_holder_are_those_of_its_options() -> None:
    assert HoldOptions().terms == Holding(None, None, 5.0, ())
    assert HoldOptions(lasting="1m", socket="/a/b", grace="2s", allow_uid=[7]).terms == Holding("/a/b", 60, 2, (7,))
    assert HolderDied(signal.SIGKILL).exit_code == 137


@pytest.mark.parametrize(
    ("place", "words"), [(None, "kv"), ("/f/", "kv --socket /f/"), ("/f/k v.sock", "--socket '/f/k v.sock'")]
)
def test_a_served_layout_is_released_by_the_command_of_its_line(
    capsys: pytest.CaptureFixture[str], place: str | None, words: str
) -> None:
    _print_ready("kv", place, "/p", None)
    assert capsys.readouterr().err == f"holding kv at /p; release it with 'memtopo release {words}'\n"


def test_the_descriptor_for_readiness_gets_the_socket_and_ends_while_the_layout_is_held(
    spec: Path, runtime: Path
) -> None:
    ours, theirs = os.pipe()
    with holding(spec, "--ready-fd", str(theirs), pass_fds=(theirs,)) as process:
        os.close(theirs)
        with os.fdopen(ours) as reader:
            assert reader.read() == f"{runtime}/memtopo/kv.sock\n"
        assert generation() == 1
        process.terminate()
        assert report_of(process)["outcome"] == "ok"


def test_readiness_is_not_written_to_a_full_pipe(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    with suppress(BlockingIOError):
        while True:
            os.write(theirs, bytes(1 << 16))
    os.set_blocking(theirs, True)
    os.set_inheritable(theirs, True)
    with opened_service(HoldOptions(ready_fd=theirs), "kv") as service:
        assert not os.get_inheritable(theirs)
        service.report_ready(str(tmp_path))
        assert not os.get_inheritable(theirs)
    with os.fdopen(ours, "rb") as reader:
        assert not reader.read().strip(b"\0")
    os.close(theirs)


def test_a_start_that_fails_ends_the_descriptor_for_readiness_without_a_line(spec: Path) -> None:
    ours, theirs = os.pipe()
    with holding(spec.with_name("none.yaml"), "--ready-fd", str(theirs), pass_fds=(theirs,)) as process:
        os.close(theirs)
        with os.fdopen(ours) as reader:
            assert reader.read() == ""
        assert process.wait(PATIENCE) == 1


def test_sighup_changes_the_layout_to_its_spec_and_leaves_it_if_that_is_refused(spec: Path) -> None:
    with holding(spec, "--reload") as process:
        line_with(process, "serving")
        spec.write_text(LARGER)
        process.send_signal(signal.SIGHUP)
        assert "generation=2 different=0" in line_with(process, "reload made")
        assert generation() == 2
        spec.write_text(SPEC.replace("2MiB", "3B"))
        process.send_signal(signal.SIGHUP)
        assert "cannot be changed to" in line_with(process, "reload refused")
        spec.unlink()
        process.send_signal(signal.SIGHUP)
        assert "cannot be read" in line_with(process, "reload refused")
        assert generation() == 2
        os.mkfifo(spec)
        begun = time.monotonic()
        process.send_signal(signal.SIGHUP)
        assert "did not end in time" in line_with(process, "reload refused")
        assert time.monotonic() - begun < 5
        process.terminate()
        report = report_of(process)
        assert (report["outcome"], report["plan"]["picture"]["memory"][0]["used"]) == ("ok", 8 << 20)


def test_a_hangup_is_one_reload_until_the_next_one() -> None:
    """Its former handler has it again afterwards."""
    before = signal.getsignal(signal.SIGHUP)
    with recorded_hangups(enabled=False) as received:
        assert (received(), signal.getsignal(signal.SIGHUP)) == (False, before)
    with recorded_hangups(enabled=True) as received:
        for times in (1, 2):
            assert not received()
            for _ in range(times):
                signal.raise_signal(signal.SIGHUP)
            assert (received(), received()) == (True, False)
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_terminal_that_vanishes_ends_a_holder_that_reloads(spec: Path) -> None:
    terminal, theirs = pty.openpty()
    with holding(spec, "--reload", start=("setsid", "--ctty"), stdin=theirs) as process:
        os.close(theirs)
        line_with(process, "serving")
        process.send_signal(signal.SIGHUP)  # not of the terminal
        line_with(process, "reload made")
        os.close(terminal)
        assert any("until a signal" in note for note in report_of(process)["notes"])


def test_systemd_is_notified_of_a_reload_which_its_variable_implies(spec: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        with holding(spec, variables={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as process:
            assert systemd.recv(4096) == b"READY=1\nSTATUS=holding kv, 1 exports"
            line_with(process, "serving")
            before = time.monotonic_ns()
            process.send_signal(signal.SIGHUP)
            first, second = systemd.recv(4096).decode().split("\n")
            assert (first, second.partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
            assert before // 1000 <= int(second.partition("=")[2]) <= time.monotonic_ns() // 1000
            assert systemd.recv(4096).startswith(b"READY=1")
            process.terminate()
            assert systemd.recv(4096) == b"STOPPING=1"
            assert report_of(process)["outcome"] == "ok"


def test_systemd_is_notified_of_the_end_of_a_reload_once_importers_have_let_go(spec: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        with holding(spec, variables={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as process:
            line_with(process, "serving")
            assert systemd.recv(4096).startswith(b"READY=1")
            with connect(endpoint("kv")) as importer:
                for each in importer.handles("pages"):
                    each.close()
                spec.write_text(SPEC.replace("size: 2MiB", "size: 4MiB"))
                process.send_signal(signal.SIGHUP)
                assert systemd.recv(4096).startswith(b"RELOADING=1")
                notice = importer.notice(PATIENCE)
                assert (notice and notice.kind, importer.status().generation) == ("changing", 1)
                assert not select.select([systemd], [], [], 0)[0]
                importer.let_go(["pages"])
                assert systemd.recv(4096).startswith(b"READY=1")
                assert importer.status().generation == 2


ACTIVATED = """
import os, sys
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "memtopo"}
os.dup2(int(sys.argv[1]), 3)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@contextmanager
def activated(sock: socket.socket, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A holder to which a socket is passed as by systemd."""
    start = (sys.executable, "-c", ACTIVATED, str(sock.fileno()))
    command = [*start, *MEMTOPO[1:], "apply", M, "--hold", "--json", *map(str, arguments)]
    with PythonProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), pass_fds=(sock.fileno(),)
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.terminate()


def test_a_passed_socket_is_served_and_its_file_stays(spec: Path, tmp_path: Path, runtime: Path) -> None:
    """A client that connected before the holder started is answered; later ones see the holder as the owner."""
    path = tmp_path / "kv.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(path))
        sock.listen()
        with raw(path) as early, activated(sock, spec, "--socket", path) as process:
            line_with(process, "serving")
            assert asked(early, "status")["ok"]["pid"] == process.pid
            with connect(endpoint(socket=str(path))) as client:
                assert client.status().pid == process.pid
                assert client.release().gone
            assert report_of(process)["outcome"] == "ok"
        assert path.is_socket()
    assert not [*runtime.glob("memtopo/*")]


def test_another_socket_than_the_passed_one_is_refused(spec: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(tmp_path / "kv.sock"))
        sock.listen()
        with activated(sock, spec, "--socket", tmp_path / "other.sock") as process:
            _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "which systemd passed" in err) == (2, True)


def test_lines_for_a_journal_have_priorities(spec: Path, tmp_path: Path) -> None:
    log = tmp_path / "journal"
    log.touch()
    stream = f"{log.stat().st_dev}:{log.stat().st_ino}"
    with log.open("w") as stderr:
        command = [*MEMTOPO, "apply", str(spec), M, "--hold", "--for", "1ms"]
        variables = environment(JOURNAL_STREAM=stream)
        done = run_python(command, stdout=subprocess.DEVNULL, stderr=stderr, env=variables, check=False)
    assert done.returncode == 0
    lines = [line.split(" ")[:2] for line in log.read_text().splitlines()]
    assert lines == [["<6>memtopo:", word] for word in ("serving", "ending", "ended")]


def test_lines_in_a_file_have_no_priorities_where_there_is_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{stream.st_dev}:{stream.st_ino}")
    with opened_service(HoldOptions(log=f"{tmp_path}/"), "kv") as service:
        service.record(HolderEvent("serving", {}))
    (line,) = (tmp_path / "kv.log").read_text().splitlines()
    assert (line[:1].isdigit(), line.partition(" ")[2]) == (True, "memtopo: serving")


def test_a_quiet_log_has_warnings_alone(tmp_path: Path) -> None:
    options = HoldOptions(log=str(tmp_path / "log"), log_level="quiet")
    with opened_service(options, "kv") as service:
        service.record(HolderEvent("serving", {}))
        service.record(HolderEvent("check failed", {}, "warning"))
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith("memtopo: check failed")


def test_the_line_after_one_that_a_full_disk_has_cut_is_a_line_of_its_own(tmp_path: Path) -> None:
    """Also in the log of an earlier holder"""
    log = tmp_path / "log"
    with opened_service(HoldOptions(log=str(log)), "kv") as service:
        for room in (30, 0, 1, 100, 30):
            with largest_files(log.stat().st_size + room):
                service.record(HolderEvent("serving", {}))
    with opened_service(HoldOptions(log=str(log)), "kv") as service:
        service.record(HolderEvent("ended", {}))
    lines = [line.partition(" ")[2] for line in log.read_text().splitlines()]
    assert lines == ["memtopo: ", "memtopo: serving", "memtopo: ", "memtopo: ended"]


def test_a_line_for_which_a_pipe_has_no_room_is_left_out() -> None:
    ours, theirs = os.pipe()
    service = Service(HoldOptions(), theirs, "pipe")
    for _ in range(3000):
        service.record(HolderEvent("importer let go", {"export": "x" * 100}))
    os.close(theirs)
    with os.fdopen(ours) as reader:
        lines = reader.read().splitlines()
    assert 0 < len(lines) < 3000
    assert len({line.partition(" ")[2] for line in lines}) == 1  # none is cut off
