"""A program that is started for its exports: waited for until it serves, and ended with all that it started."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from memtopo.executor import Stopped
from memtopo.sharing import connect, endpoint
from memtopo.sharing.producers import ProducerFailed, Producers, start_producers
from memtopo.sharing.programs import Program
from tests.cli.running import QUICKSTART, ROOT, environment
from tests.helpers.machines import invented
from tests.helpers.specs import judged, run, run_request
from tests.sharing.holding import PATIENCE, fds, gone, until

BEHAVING = (sys.executable, "-m", "tests.sharing.producers.behaving")
OF_TWO = """
external:
  frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}
  depth: {from: lidar/frame, via: opaque_fd, device: gpu0, size: 4KiB}
"""
STARTING = (sys.executable, "-m", "tests.sharing.producers.starting")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of sockets are made, which is empty again in the end."""
    found = tmp_path / "folders"
    found.mkdir()
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setattr("tempfile.tempdir", str(found))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.chdir(ROOT)
    return found


def test_from_start_to_end(folders: Path) -> None:
    """It serves at a socket in a folder that nobody else may enter, until the end, and leaves nothing"""
    before = fds()
    with Program("camera", [*BEHAVING, "serve"]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        (folder,) = folders.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with connect(endpoint(socket=program.socket)) as client:
            assert [*client.offers()] == ["frame", "ready"]
            pid = client.pid
        assert program.end() is None
    assert gone(pid)
    assert (fds(), [*folders.iterdir()]) == (before, [])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(3)", "ended with status 3 before it served"),
        ("pass", "ended with status 0 before it served"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV before it served"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40 before it served"),
    ],
)
def test_it_ends_before_it_serves(code: str, told: str, folders: Path) -> None:
    """A program that ends before it serves is told with how it ended"""
    with (
        Program("camera", [sys.executable, "-c", code]) as program,
        pytest.raises(ProducerFailed, match=rf"^the program of 'camera' {told}$"),
    ):
        program.wait_until_serving(lambda: 0, PATIENCE)
    assert [*folders.iterdir()] == []


def test_it_never_serves() -> None:
    """A program that goes on and does not serve is told once the time is over, and ended"""
    with (
        Program("camera", ["sleep", "1000"]) as program,
        pytest.raises(ProducerFailed, match=r"does not serve after 0\.1 s") as error,
    ):
        program.wait_until_serving(lambda: 0, 0.1)
    assert "MEMTOPO_SOCKET" in str(error.value.hint)


def test_a_signal_while_it_starts() -> None:
    """Who is asked to stop does not wait for a program any more"""
    with Program("camera", ["sleep", "1000"]) as program, pytest.raises(Stopped):
        program.wait_until_serving(lambda: signal.SIGINT, PATIENCE)


def test_a_command_that_cannot_be_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that is no program is told by the system's words on stderr, and by its status"""
    (tmp_path / "nonsense").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "nonsense").chmod(0o755)
    with (
        Program("camera", [str(tmp_path / "nonsense")]) as program,
        pytest.raises(ProducerFailed, match="ended with status 1 before it served"),
    ):
        program.wait_until_serving(lambda: 0, PATIENCE)
    assert "nonsense cannot be started: exec format error" in capfd.readouterr().err


def test_one_that_does_not_end() -> None:
    """A program that ignores SIGTERM is killed once its grace is over"""
    with Program("camera", [*BEHAVING, "stubborn"], grace=0.1) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        with connect(endpoint(socket=program.socket)) as client:
            pid = client.pid
    assert gone(pid)


def test_one_that_is_interrupted(folders: Path) -> None:
    """Ctrl-C while a program has its grace is heard, and the program is killed all the same"""
    with ExitStack() as stack:
        program = stack.enter_context(Program("camera", [*BEHAVING, "interrupting"], grace=PATIENCE))
        program.wait_until_serving(lambda: 0, PATIENCE)
        with connect(endpoint(socket=program.socket)) as client:
            pid = client.pid
        with pytest.raises(KeyboardInterrupt):
            stack.close()
    assert gone(pid)
    assert [*folders.iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not kill its own child")
def test_one_that_cannot_be_killed() -> None:
    """A program that may not be killed, as one that became another user, is left after a while; a report names it"""
    program = Program("camera", ["sleep", "1000"], grace=0.1)
    try:
        with program:
            os.setresuid(65534, 65534, 0)
    finally:
        os.setresuid(0, 0, 0)
    pid = program.survivor
    assert pid
    machine = invented(2)
    report = Producers({}, [program]).with_survivors(run(run_request(Path(QUICKSTART), machine), machine).report)
    assert report.notes[-1] == f"the program of camera did not end when it was killed: process {pid} is left"
    os.kill(pid, signal.SIGKILL)
    until(lambda: program.survivor is None)


def test_nobody_knows_how_it_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """Where SIGCHLD is ignored, how a program ended cannot be known, but that it did; what it started ends too"""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with (
            Program("camera", ["sh", "-c", "sleep 1000 & echo $! >&2"]) as program,
            pytest.raises(
                ProducerFailed, match=r"^the program of 'camera' ended \(with unknown status\) before it served$"
            ),
        ):
            program.wait_until_serving(lambda: 0, PATIENCE)
        child = int(capfd.readouterr().err)
        until(lambda: gone(child))
        with Program("camera", [*BEHAVING, "serve"]) as program:
            program.wait_until_serving(lambda: 0, PATIENCE)
            with connect(endpoint(socket=program.socket)) as client:
                pid = client.pid
        assert gone(pid)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_all_have_one_grace(tmp_path: Path) -> None:
    """All programs are asked to end before one of them is waited for"""
    machine = invented(2)
    spec = judged(OF_TWO, machine)
    assert spec.geometry
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    serve = (*BEHAVING, "mutual", "4096", "0" * 32)
    bound = {"camera": (*serve, one, two, f"{one}-end"), "lidar": (*serve, two, one, f"{two}-end")}
    with start_producers(spec.geometry, bound, machine):
        pass
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["one", "one-end", "two", "two-end"]


def test_what_it_started_ends_too(tmp_path: Path) -> None:
    """What a program started itself ends with it"""
    with Program("camera", [*BEHAVING, "parent", str(tmp_path / "child")]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        child = int((tmp_path / "child").read_text())
        assert not gone(child)
    until(lambda: gone(child))


def test_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    """What a program prints goes to stderr, since stdout is for results alone"""
    with Program("camera", [*BEHAVING, "serve"]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("serving as ")


def test_ctrl_c_is_not_for_it() -> None:
    """A program is in a process group of its own: Ctrl-C does not reach it while a layout still uses what it serves"""
    with Program("camera", [*BEHAVING, "serve"]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        with connect(endpoint(socket=program.socket)) as client:
            assert os.getpgid(client.pid) not in (os.getpgid(0), 0)


def test_whoever_started_it_is_killed() -> None:
    """A program ends when whoever started it is killed, who could not end it"""
    with subprocess.Popen([*STARTING, *BEHAVING, "serve"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as starter:
        assert starter.stdout
        with connect(endpoint(socket=starter.stdout.readline().strip())) as client:
            starter.kill()
            assert select.select([client], [], [], PATIENCE)[0]
            until(lambda: gone(client.pid))


def test_one_that_ends_early_is_in_the_report() -> None:
    """A report says of a program that it ended while its layout was in use, and how"""
    spec, machine = judged("external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}}"), invented(2)
    assert spec.geometry
    report = run(run_request(Path(QUICKSTART), machine), machine).report
    with start_producers(spec.geometry, {"camera": (*BEHAVING, "dies")}, machine) as found:
        assert found.with_notes(report) is report
        with connect(endpoint(socket=found.sockets["camera"])) as client:
            next(client.handles("frame")).close()
            until(lambda: found.with_notes(report) is not report)
        assert found.with_notes(report).notes == (
            "the program of camera ended with status 9 while its layout was in use",
        )
