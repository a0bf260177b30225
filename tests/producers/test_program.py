"""A program that is started for its exports: waited for until it serves, and ended with all that it started."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.exchange import connect, place
from memtopo.executor import Stopped
from memtopo.producers import ProducerFailed, producers
from memtopo.producers.program import Program
from tests.cli.running import QUICKSTART, ROOT, environment
from tests.exchange.holding import PATIENCE, fds, gone, until
from tests.machines import invented
from tests.specs import job, judged, run

BEHAVING = (sys.executable, "-m", "tests.producers.behaving")
STARTING = (sys.executable, "-m", "tests.producers.starting")


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
        program.await_served(lambda: 0, PATIENCE)
        (folder,) = folders.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with connect(place(socket=program.socket)) as client:
            assert [*client.offers()] == ["frame", "ready"]
            pid = client.pid
        assert program.ended() is None
    assert gone(pid)
    assert (fds(), [*folders.iterdir()]) == (before, [])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(3)", "ended with status 3 before it served"),
        ("pass", "ended with status 0 before it served"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV before it served"),
    ],
)
def test_it_ends_before_it_serves(code: str, told: str, folders: Path) -> None:
    """A program that ends before it serves is told with how it ended"""
    with (
        Program("camera", [sys.executable, "-c", code]) as program,
        pytest.raises(ProducerFailed, match=rf"^the program of 'camera' {told}$"),
    ):
        program.await_served(lambda: 0, PATIENCE)
    assert [*folders.iterdir()] == []


def test_it_never_serves() -> None:
    """A program that goes on and does not serve is told once the time is over, and ended"""
    with (
        Program("camera", ["sleep", "1000"]) as program,
        pytest.raises(ProducerFailed, match=r"does not serve after 0\.1 s") as error,
    ):
        program.await_served(lambda: 0, 0.1)
    assert "MEMTOPO_SOCKET" in str(error.value.hint)


def test_a_signal_while_it_starts() -> None:
    """Who is asked to stop does not wait for a program any more"""
    with Program("camera", ["sleep", "1000"]) as program, pytest.raises(Stopped):
        program.await_served(lambda: signal.SIGINT, PATIENCE)


def test_a_command_that_cannot_be_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that is no program is told by the system's words on stderr, and by its status"""
    (tmp_path / "nonsense").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "nonsense").chmod(0o755)
    with (
        Program("camera", [str(tmp_path / "nonsense")]) as program,
        pytest.raises(ProducerFailed, match="ended with status 1 before it served"),
    ):
        program.await_served(lambda: 0, PATIENCE)
    assert "nonsense cannot be started: exec format error" in capfd.readouterr().err


def test_one_that_does_not_end() -> None:
    """A program that ignores SIGTERM is killed once its grace is over"""
    with Program("camera", [*BEHAVING, "stubborn"], grace=0.1) as program:
        program.await_served(lambda: 0, PATIENCE)
        with connect(place(socket=program.socket)) as client:
            pid = client.pid
    assert gone(pid)


def test_what_it_started_ends_too(tmp_path: Path) -> None:
    """What a program started itself ends with it"""
    with Program("camera", [*BEHAVING, "parent", str(tmp_path / "child")]) as program:
        program.await_served(lambda: 0, PATIENCE)
        child = int((tmp_path / "child").read_text())
        assert not gone(child)
    until(lambda: gone(child))


def test_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    """What a program prints goes to stderr, since stdout is for results alone"""
    with Program("camera", [*BEHAVING, "serve"]) as program:
        program.await_served(lambda: 0, PATIENCE)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("serving as ")


def test_ctrl_c_is_not_for_it() -> None:
    """A program is in a process group of its own: Ctrl-C does not reach it while a layout still uses what it serves"""
    with Program("camera", [*BEHAVING, "serve"]) as program:
        program.await_served(lambda: 0, PATIENCE)
        with connect(place(socket=program.socket)) as client:
            assert os.getpgid(client.pid) not in (os.getpgid(0), 0)


def test_whoever_started_it_is_killed() -> None:
    """A program ends when whoever started it is killed, who could not end it"""
    with subprocess.Popen([*STARTING, *BEHAVING, "serve"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as starter:
        assert starter.stdout
        with connect(place(socket=starter.stdout.readline().strip())) as client:
            starter.kill()
            assert select.select([client], [], [], PATIENCE)[0]
            until(lambda: gone(client.pid))


def test_one_that_ends_early_is_in_the_report() -> None:
    """A report says of a program that it ended while its layout stood, and how"""
    spec, machine = judged("external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}}"), invented(2)
    assert spec.geometry
    report = run(job(Path(QUICKSTART), machine), machine).report
    with producers(spec.geometry, {"camera": (*BEHAVING, "dies")}, machine) as found:
        assert found.noted(report) is report
        with connect(place(socket=found.sockets["camera"])) as client:
            next(client.handles("frame")).close()
            until(lambda: found.noted(report) is not report)
        assert found.noted(report).notes == ("the program of camera ended with status 9 while its layout stood",)
