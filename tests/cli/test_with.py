"""`memtopo apply --with`: sockets and programs for the holders that a spec names."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from memtopo.cli.apply import BoundHolders, _bindings
from memtopo.cli.service import HoldOptions
from memtopo.cli.specs import RunOptions
from memtopo.drivers import target
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import MEMTOPO, QUICKSTART, ROOT, CommandResult, environment, run_memtopo
from tests.helpers.holders import gone, until
from tests.helpers.python_process import PythonProcess, run_python, shell_command

PRODUCER = "tests.sharing.children.misbehaving_producer"
GPU = target.uuids(target.resolve("h200x2").machine)[0]
SPEC = """memtopo: 1
name: frames
external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 64KiB}}
"""
SEVERAL = """memtopo: 1
name: frames
processes:
  one: {external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 64KiB}}}
  two: {external: {own: {from: camera/frame, via: opaque_fd, device: gpu0, size: 64KiB}}}
"""
M = ("--machine", "h200x2")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec that takes memory from a camera."""
    found = tmp_path / "frames.yaml"
    found.write_text(SPEC)
    return found


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Parent folder of the sockets, which is empty after the test."""
    found = tmp_path / "folders"
    found.mkdir()
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(found))
    yield found
    assert [each for each in found.iterdir() if each.name != "memtopo"] == []


def behaving(how: str, size: int = 65536) -> str:
    """Return the command of a producer that behaves so."""
    return f"{shell_command(PRODUCER)} {how} {size} {GPU}"


def apply_with(spec: Path, *more: str, **variables: str) -> CommandResult:
    return run_memtopo("apply", spec, *M, "--json", *more, **variables)


def test_a_producer_command_is_started_and_imported_from(spec: Path) -> None:
    """Its output is on stderr."""
    result = apply_with(spec, "--with", f"camera={behaving('serve')}")
    assert (result.status, result.document["outcome"]) == (0, "ok")
    assert "serving" in result.err
    assert not any("simulated by" in note for note in result.document["notes"])


def test_conductor_starts_a_producer_once_for_all_processes(tmp_path: Path) -> None:
    spec = tmp_path / "several.yaml"
    spec.write_text(SEVERAL)
    result = apply_with(spec, "--with", f"camera={behaving('serve')}")
    assert (result.status, result.document["outcome"]) == (0, "ok")
    assert result.err.count("serving") == 1


def test_an_existing_socket_is_used_and_its_holder_goes_on(spec: Path, tmp_path: Path) -> None:
    where = str(tmp_path / "camera.sock")
    env = environment(MEMTOPO_SOCKET=where)
    serve = [sys.executable, "-m", PRODUCER, "serve", "65536", GPU]
    with PythonProcess(serve, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True) as producer:
        try:
            assert producer.stdout
            assert producer.stdout.readline() == f"serving as {producer.pid}\n"
            outcomes = [apply_with(spec, "--with", f"camera={where}").document["outcome"] for _ in range(2)]
        finally:
            producer.terminate()
        assert (outcomes, producer.wait(PATIENCE)) == (["ok", "ok"], 0)


def test_what_is_bound_goes_before_a_socket_in_the_folder(spec: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nobody:
        nobody.bind(str(tmp_path / "camera.sock"))
    result = apply_with(spec, "--socket", str(tmp_path), "--with", f"camera={behaving('serve')}")
    assert result.document["outcome"] == "ok"


def test_a_producer_command_can_be_memtopo(tmp_path: Path) -> None:
    """It finds its socket in the variable of --socket."""
    held, attached = (ROOT / "tests" / "run" / "processes" / f"{name}.yaml" for name in ("held", "attached"))
    command = f"{sys.executable} -m memtopo apply --hold --json {held} --machine h200x2"
    result = apply_with(attached, "--with", f"held={command}")
    assert result.document["outcome"] == "ok"


@pytest.mark.parametrize("text", [SPEC, SEVERAL], ids=["one process", "several"])
def test_an_unbound_holder_is_simulated_on_a_simulated_machine(text: str, tmp_path: Path) -> None:
    """The report says so."""
    spec = tmp_path / "frames.yaml"
    spec.write_text(text)
    result = apply_with(spec)
    assert result.document["outcome"] == "ok"
    assert "camera is simulated by a built-in producer: this machine is simulated" in result.document["notes"]


def test_holders_are_bound_by_options_or_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    terms, run = HoldOptions(socket="/f/", allow_uid=[5]).terms, RunOptions(bound=["a=b=c"], timeout="7s")
    assert _bindings(run, terms) == BoundHolders({"a": "b=c"}, (5,), 7.0, True, "/f/")
    assert _bindings(run, HoldOptions(socket="/f/x.sock").terms).folder is None
    monkeypatch.setenv("MEMTOPO_WITH", "a=b=c")
    assert _bindings(run, terms).typed is False


def test_memtopo_with_is_split_like_a_shell_command(spec: Path) -> None:
    result = apply_with(spec, MEMTOPO_WITH=f"'camera={behaving('serve')}' other=/nowhere")
    assert (result.document["outcome"], "serving" in result.err) == ("ok", True)
    result = run_memtopo("apply", spec, *M, MEMTOPO_WITH="'camera=")
    assert (result.status, "MEMTOPO_WITH cannot be split" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ("nothing", 2, "names neither a socket nor a program"),
        ("=x", 2, "names neither a socket nor a program"),
        ("camera=", 2, "names neither a socket nor a program"),
        ("camera=/no/such.sock", 3, "there is neither a socket '/no/such.sock' nor a program '/no/such.sock'"),
        ("camera=/no/such=.sock", 3, "there is neither a socket '/no/such=.sock'"),
        ("camera=no-such-program --fast", 3, "nor a program 'no-such-program'"),
        ("camera='unclosed", 2, "cannot be split into words"),
        ("camera= ", 3, "nor a program ''"),
        ("camera=false", 4, "the program of 'camera' ended with status 1 before it served"),
    ],
)
def test_a_target_that_is_neither_socket_nor_program_is_rejected_before_building(
    spec: Path, given: str, status: int, message: str
) -> None:
    """So is a program that does not serve."""
    result = run_memtopo("apply", spec, *M, "--with", given)
    assert (result.status, result.out) == (status, "")
    assert message in result.err


def test_producer_commands_are_not_run_by_a_shell(spec: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    result = run_memtopo("apply", spec, *M, "--with", f"camera=false; touch {mark}")
    assert (result.status, mark.exists()) == (3, False)


def test_unused_commands_of_memtopo_with_are_not_started(spec: Path, tmp_path: Path) -> None:
    """They may be for another spec."""
    mark = tmp_path / "mark"
    assert apply_with(spec, MEMTOPO_WITH=f"'other=touch {mark}'").document["outcome"] == "ok"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("given", "hint"), [("camra", "did you mean 'camera'?"), ("radio", "known are camera"), ("Camera", "'camera'?")]
)
def test_an_unused_name_is_answered_with_the_nearest(spec: Path, tmp_path: Path, given: str, hint: str) -> None:
    """Nothing is started."""
    mark = tmp_path / "mark"
    result = run_memtopo("apply", spec, *M, "--with", f"camera=touch {mark}", "--with", f"{given}=touch {mark}")
    assert (result.status, result.out, mark.exists()) == (2, "", False)
    assert f"--with: the spec imports nothing from {given!r}" in result.err
    assert hint in result.err


def test_a_name_for_a_spec_without_imports_is_rejected() -> None:
    result = run_memtopo("apply", QUICKSTART, *M, "--with", "camera=true")
    assert (result.status, "it imports nothing from outside" in result.err) == (2, True)


def test_an_inherited_ignored_sigchld_does_not_keep_producers_alive(spec: Path) -> None:
    ignoring = "from signal import *; signal(SIGCHLD, SIG_IGN); from memtopo.cli import main; main()"
    for more in ([], ["--with", f"camera={behaving('serve')}"]):
        command = [sys.executable, "-c", ignoring, "apply", str(spec), *M, "--json", *more]
        done = run_python(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, "ok"), done.stderr


def test_a_producer_with_undeclared_properties_exits_with_4_after_undoing(spec: Path) -> None:
    """The declared entry is named."""
    result = apply_with(spec, "--with", f"camera={behaving('serve', 4096)}")
    assert (result.status, result.document["outcome"]) == (4, "failed")
    assert "external 'frame' declares size 64KiB; camera/frame has 4KiB" in result.document["failure"]["error"]
    assert not any(result.document["left"]["ledger_after"].values())


def test_a_producer_that_dies_before_its_handle_exits_with_4_after_undoing(spec: Path) -> None:
    """The declared entry is named."""
    result = apply_with(spec, "--with", f"camera={behaving('vanishes')}")
    assert (result.status, result.document["outcome"]) == (4, "failed")
    assert result.document["failure"]["error"].startswith("external 'frame' cannot be imported: the holder ended")
    assert not any(result.document["left"]["ledger_after"].values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_the_producer(spec: Path, number: signal.Signals, tmp_path: Path) -> None:
    """The run exits with 130 or 143."""
    mark = tmp_path / "mark"
    os.mkfifo(mark)
    code = f"open({str(mark)!r}, 'w').close(); import signal; signal.pause()"
    command = [*MEMTOPO, "apply", str(spec), *M, "--json", "--with", f'camera={sys.executable} -c "{code}"']
    with PythonProcess(command, stdout=subprocess.PIPE, env=environment(), cwd=ROOT) as process:
        mark.read_text()  # it has been started
        process.send_signal(number)
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert json.loads(out)["error"]["message"] == "interrupted"


def test_imports_outlive_their_producer(spec: Path) -> None:
    """Fact 53; the report has the exit status of the producer."""
    dying = f"camera={sys.executable} -m {PRODUCER} dies 65536 {GPU}"  # no fork, whose client ends after it
    command = [*MEMTOPO, "apply", str(spec), *M, "--json", "--hold", "--with", dying]
    env = environment()
    with PythonProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=ROOT, text=True) as it:
        assert it.stderr
        result = list(takewhile(lambda line: not line.startswith("holding"), it.stderr))
        (pid,) = (int(line.rpartition(" ")[2]) for line in result if line.startswith("serving as "))
        until(lambda: gone(pid))
        it.terminate()
        report = json.loads(it.communicate(timeout=PATIENCE)[0])
    assert (it.returncode, report["outcome"]) == (0, "ok")
    assert "the program of camera ended with status 9 while its layout was in use" in report["notes"]
