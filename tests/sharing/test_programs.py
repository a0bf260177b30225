"""A program that is started for its exports: waited for until it serves, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import ExitStack
from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path

import pytest

from memtopo.common.errors import Stopped, UsageError
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.producers import Producers, start_producers
from memtopo.sharing.programs import ProducerFailed, ProducerProgram
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import QUICKSTART, ROOT, environment
from tests.helpers.holders import gone, until
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors
from tests.helpers.python_process import PythonProcess
from tests.helpers.specs import run, run_request, validate_text

BEHAVING = (sys.executable, "-m", "tests.sharing.children.misbehaving_producer")
OF_TWO = """
external:
  frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}
  depth: {from: lidar/frame, via: opaque_fd, device: gpu0, size: 4KiB}
"""
STARTING = (sys.executable, "-m", "tests.sharing.children.program_parent")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parent folder of the sockets, which is empty at the end."""
    found = tmp_path / "folders"
    found.mkdir()
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setattr("tempfile.tempdir", str(found))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.chdir(ROOT)
    return found


def test_a_program_serves_in_a_private_folder_and_leaves_nothing(
    folders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its output goes to stderr, and Ctrl-C does not reach it."""
    before = open_descriptors()
    with ProducerProgram("camera", [*BEHAVING, "serve"]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        (folder,) = folders.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with connect(endpoint(socket=program.socket)) as client:
            assert [*client.offers()] == ["frame", "ready"]
            pid = client.pid
        assert os.getpgid(pid) not in (os.getpgid(0), 0)
        assert program.end() is None
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("serving as ")
    assert gone(pid)
    assert (open_descriptors(), [*folders.iterdir()]) == (before, [])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "ended with status 3 before it served"),
        ("pass", "ended with status 0 before it served"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV before it served"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40 before it served"),
    ],
)
def test_a_program_that_ends_before_it_serves_is_an_error_with_its_status(
    code: str, reason: str, folders: Path
) -> None:
    with (
        ProducerProgram("camera", [sys.executable, "-c", code]) as program,
        pytest.raises(ProducerFailed, match=rf"^the program of 'camera' {reason}$"),
    ):
        program.wait_until_serving(lambda: 0, PATIENCE)
    assert [*folders.iterdir()] == []


def test_a_program_that_never_serves_is_an_error_and_is_ended() -> None:
    with (
        ProducerProgram("camera", ["sleep", "1000"]) as program,
        pytest.raises(ProducerFailed, match=r"does not serve after 0\.1 s") as error,
    ):
        program.wait_until_serving(lambda: 0, 0.1)
    assert "MEMTOPO_SOCKET" in str(error.value.hint)


def test_a_signal_ends_the_wait_for_a_program() -> None:
    with ProducerProgram("camera", ["sleep", "1000"]) as program, pytest.raises(Stopped):
        program.wait_until_serving(lambda: signal.SIGINT, PATIENCE)


def test_a_file_that_cannot_be_run_is_an_error_with_its_reason(tmp_path: Path, folders: Path) -> None:
    (tmp_path / "nonsense").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "nonsense").chmod(0o755)
    program = ProducerProgram("camera", [str(tmp_path / "nonsense")])
    with (
        pytest.raises(ProducerFailed, match=r"^the program of 'camera' cannot be started: exec format error$"),
        program,
    ):
        raise AssertionError("it was started")
    assert [*folders.iterdir()] == []


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    with ProducerProgram("camera", [*BEHAVING, "stubborn"], grace=0.1) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        with connect(endpoint(socket=program.socket)) as client:
            pid = client.pid
    assert gone(pid)


def test_ctrl_c_during_the_grace_interrupts_and_the_program_is_killed(folders: Path) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(ProducerProgram("camera", [*BEHAVING, "interrupting"], grace=PATIENCE))
        program.wait_until_serving(lambda: 0, PATIENCE)
        with connect(endpoint(socket=program.socket)) as client:
            pid = client.pid
        with pytest.raises(KeyboardInterrupt):
            stack.close()
    assert gone(pid)
    assert [*folders.iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that may not kill its own child")
def test_a_program_that_cannot_be_killed_is_left_and_reported() -> None:
    program = ProducerProgram("camera", ["sleep", "1000"], grace=0.1)
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


def test_with_sigchld_ignored_the_end_of_a_program_is_seen_without_its_status(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with (
            ProducerProgram("camera", ["sh", "-c", "sleep 1000 & echo $! >&2"]) as program,
            pytest.raises(
                ProducerFailed, match=r"^the program of 'camera' ended \(with unknown status\) before it served$"
            ),
        ):
            program.wait_until_serving(lambda: 0, PATIENCE)
        child = int(capfd.readouterr().err)
        until(lambda: gone(child))
        with ProducerProgram("camera", [*BEHAVING, "serve"]) as program:
            program.wait_until_serving(lambda: 0, PATIENCE)
            with connect(endpoint(socket=program.socket)) as client:
                pid = client.pid
        assert gone(pid)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_all_programs_are_terminated_before_one_is_waited_for(tmp_path: Path) -> None:
    machine = invented(2)
    spec = validate_text(OF_TWO, machine)
    assert spec.geometry
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    serve = (*BEHAVING, "mutual", "4096", "0" * 32)
    bound = {"camera": (*serve, one, two, f"{one}-end"), "lidar": (*serve, two, one, f"{two}-end")}
    with start_producers(spec.geometry, bound, machine):
        pass
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["one", "one-end", "two", "two-end"]


def test_processes_of_sessions_of_their_own_end_with_the_program_that_started_them(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = f"setsid sleep 1000 & echo $! > {child}; exec {' '.join(BEHAVING)} serve"
    with ProducerProgram("camera", ["sh", "-c", code]) as program:
        program.wait_until_serving(lambda: 0, PATIENCE)
        pid = int(child.read_text())
        until(lambda: os.getsid(pid) == pid)
    until(lambda: gone(pid))


def test_folders_of_dead_processes_are_removed_and_others_stay(folders: Path) -> None:
    (folders / "memtopo-program-of-another-program").mkdir(0o700)
    with (
        PythonProcess([*STARTING, "sleep", "1000"], cwd=ROOT) as dead,
        ProducerProgram("camera", ["sleep", "1000"]) as living,
    ):
        until(lambda: [each.stat().st_nlink for each in folders.glob("*/owner.lock")] == [1, 1])  # both are complete
        dead.kill()
        dead.wait()
        # A process that it forked just before has its lock, too, until it executes another program.
        until(lambda: any(map(unlocked, folders.glob("*/owner.lock"))))
        with ProducerProgram("lidar", ["sleep", "1000"]) as started:
            locks = {each.parent for each in folders.glob("*/owner.lock")}
            assert locks == {Path(living.socket).parent, Path(started.socket).parent}
    (left,) = folders.iterdir()
    assert left.name == "memtopo-program-of-another-program"


def unlocked(file: Path) -> bool:
    """Return whether no process has locked a file."""
    with file.open() as lock:
        try:
            flock(lock, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_without_a_temporary_folder_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with (
        pytest.raises(ProducerFailed, match="no folder for its socket: no such file"),
        ProducerProgram("camera", ["true"]),
    ):
        pass


def test_a_producer_that_is_neither_bound_nor_running_is_wrong_usage_on_real_gpus(runtime: Path) -> None:
    spec = validate_text(OF_TWO, invented(2))
    assert spec.geometry
    with (
        pytest.raises(UsageError, match="'depth' comes from 'lidar', which is neither bound nor running"),
        start_producers(spec.geometry, {"camera": (*BEHAVING, "serve")}, None),
    ):
        pass


def test_a_program_and_processes_that_it_started_end_when_its_parent_is_killed(tmp_path: Path) -> None:
    files = [tmp_path / "own", tmp_path / "group", tmp_path / "session"]
    children = f"sleep 1000 & echo $! > {files[1]}; setsid sleep 1000 & echo $! > {files[2]}"
    code = f"echo $$ > {files[0]}; {children}; exec {' '.join(BEHAVING)} serve"
    with PythonProcess([*STARTING, "sh", "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as starter:
        assert starter.stdout
        starter.stdout.readline()
        started = [int(file.read_text()) for file in files]
        assert not any(map(gone, started))
        starter.kill()
        until(lambda: all(map(gone, started)))


def test_the_end_of_the_thread_that_started_a_program_sends_it_no_signal(tmp_path: Path) -> None:
    block = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    code = f"{block}; open(sys.argv[1], 'w').close(); signal.pause()"
    program = ProducerProgram("camera", [sys.executable, "-c", code, str(tmp_path / "blocked")], grace=0.1)

    def start() -> None:
        stack.enter_context(program)
        until((tmp_path / "blocked").exists)

    before = set(children())
    with ExitStack() as stack:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
        started = set(children()) - before
        assert len(started) == 2  # the program and its watcher
        for pid in started:
            assert "ShdPnd:\t0000000000000000\n" in Path(f"/proc/{pid}/status").read_text()


def children() -> list[int]:
    """Processes that any thread of this one started."""
    files = Path("/proc/self/task").glob("*/children")
    return [int(pid) for file in files for pid in file.read_text().split()]


def test_a_program_that_ends_during_the_layout_is_in_the_report() -> None:
    spec, machine = (
        validate_text("external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}}"),
        invented(2),
    )
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


def test_a_program_is_told_to_end_once_and_binds_no_holder_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memtopo with the bindings of its parent would start itself for ever."""
    monkeypatch.setenv("MEMTOPO_WITH", "camera=/run/camera.sock")
    told, known = tmp_path / "told", tmp_path / "told.env"
    code = "trap 'echo told >> $1' TERM; trap 'echo seen >> $1' WINCH; { env; echo PID=$$; } > $1.env"
    command = ["sh", "-c", f"{code}; while :; do sleep 0.01; done", "sh", str(told)]
    with ProducerProgram("camera", command, b"", grace=0.1) as program:
        until(lambda: "\nPID=" in text_in(known))
        assert f"MEMTOPO_SOCKET={program.socket}\n" in text_in(known)
        assert "MEMTOPO_WITH" not in text_in(known)
        program.terminate()
        until(told.exists)
        program.terminate()
        os.kill(int(text_in(known).rpartition("=")[2]), signal.SIGWINCH)
        until(lambda: text_in(told).endswith("seen\n"))
    assert text_in(told) == "told\nseen\n"


def text_in(file: Path) -> str:
    return file.read_text() if file.exists() else ""
