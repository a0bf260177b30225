"""`memtopo capture`: the program's status, signals and children, and what is refused before it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from memtopo.plans.trace import read_traces
from tests.helpers import captures
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import MEMTOPO, CommandResult, run_memtopo

ALLOCATE = captures.BEFORE + "Driver().init(0).allocate(5)\n"
NO_DRIVER = "no NVIDIA driver is installed here: "


def capture(
    *command: str | Path, options: tuple[str | Path, ...] = (), cupti: str | None = None, **more: str
) -> CommandResult:
    """Run a program under a capture, with the stubs of the driver and of CUPTI."""
    found = captures.variables(**more)
    given = {name: found[name] for name in ("LD_LIBRARY_PATH", "STUB_CUPTI", "CUPTI_NAMES", *more)}
    return run_memtopo("capture", "--cupti", cupti or captures.cupti(), *options, "--", *command, **given)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def test_a_program_is_recorded_with_its_children_and_its_status_kept(file: Path) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ALLOCATE!r}]); {ALLOCATE}sys.exit(7)"
    result = capture(sys.executable, "-c", program.replace("; from", "\nfrom"), options=("-o", file))
    assert (result.status, result.out) == (7, "")
    assert result.err == f"captured 2 calls of 2 processes in {file}\n"
    assert [[call.arguments for call in trace.calls] for trace in read_traces([file])] == [[{"size": 5}]] * 2
    assert (file.stat().st_mode & 0o777) == 0o600


def test_the_summary_of_the_calls_is_that_of_a_trace(file: Path) -> None:
    """A mark is no call."""
    marked = f"{ALLOCATE}import memtopo\nmemtopo.mark('after')"
    result = capture(sys.executable, "-c", marked, options=("-o", file))
    assert (result.err, b"after" in file.read_bytes()) == (f"captured 1 call of 1 process in {file}\n", True)
    shown = run_memtopo("trace", file).out
    assert shown.startswith("trace  captured program  on local\n")
    assert "cuMemAlloc" in shown


def test_options_after_the_program_are_the_programs(file: Path) -> None:
    result = capture("/bin/echo", "-o", "--stacks", "--", options=("-o", file))
    assert (result.status, result.out) == (0, "-o --stacks --\n")
    assert result.err == f"no process made a CUDA memory call: {file} is empty\n"


def test_a_signal_that_ends_the_program_is_the_status(file: Path) -> None:
    code = f"{ALLOCATE}import os; os.kill(os.getpid(), 9)"
    result = capture(sys.executable, "-c", code, options=("-o", file))
    assert (result.status, result.err) == (137, f"captured 1 call of 1 process in {file}\n")


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
def test_a_signal_that_only_python_ignores_ends_the_program(number: signal.Signals, file: Path) -> None:
    result = capture("/bin/sh", "-c", f"ulimit -c 0; kill -{number} $$", options=("-o", file))
    assert result.status == 128 + number


def test_a_program_has_the_signals_blocked_that_the_command_began_with(file: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        result = capture("grep", "^SigBlk", "/proc/self/status", options=("-o", file))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    blocked = sum(1 << number - 1 for number in {*before, signal.SIGUSR1})
    assert result.out == f"SigBlk:\t{blocked:016x}\n"


@contextmanager
def waiting(file: Path) -> Iterator[subprocess.Popen[str]]:
    """A captured program that waits for SIGTERM or SIGINT, and ends with 7; both processes end with the block."""
    code = (
        "import signal, sys; [signal.signal(n, lambda *_: sys.exit(7)) for n in (2, 15)]; print('on', flush=True)\n"
        "while True: signal.pause()"
    )
    command = [*MEMTOPO, "capture", "--cupti", captures.cupti(), "-o", str(file), "--", sys.executable, "-c", code]
    process = subprocess.Popen(
        command,
        env=captures.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "on\n"
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_for_the_command_goes_to_the_program(number: signal.Signals, file: Path) -> None:
    with waiting(file) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == 7
        assert process.stderr
        assert process.stderr.read() == f"no process made a CUDA memory call: {file} is empty\n"


def test_ctrl_c_reaches_the_program_once(tmp_path: Path) -> None:
    """By the terminal, whose foreground processes both are."""
    import pty

    code = (
        "import signal, time, sys\ncount = 0\n"
        "def note(*_):\n global count\n count += 1\n"
        "signal.signal(2, note)\nprint('on', flush=True)\n"
        "deadline = time.monotonic() + 0.5\n"
        "while not count: time.sleep(0.01)\n"
        "while time.monotonic() < deadline: time.sleep(0.01)\n"
        "sys.exit(count)"
    )
    command = [*MEMTOPO, "capture", "--cupti", captures.cupti(), "-o", str(tmp_path / "r"), "--", sys.executable]
    child, terminal = pty.fork()
    if not child:
        os.execvpe(command[0], [*command, "-c", code], captures.variables())
    shown = b""
    while b"on" not in shown:
        shown += os.read(terminal, 100)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    os.close(terminal)


def test_stacks_are_recorded_on_request(file: Path) -> None:
    capture(sys.executable, "-c", ALLOCATE, options=("-o", file, "--stacks", "python"))
    ((call,),) = (trace.calls for trace in read_traces([file]))
    assert call.stack[-1] == "<string>:2 <module>"


def refused(result: CommandResult, status: int, *texts: str) -> None:
    assert (result.status, result.out) == (status, "")
    for text in texts:
        assert text in result.err


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"CUPTI_RESULT": "39"}, "CUPTI has another subscriber, such as a profiler: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS"),
        ({"CUPTI_RESULT": "35"}, "CUPTI is not permitted to this user"),
        ({"CUPTI_RESULT": "999"}, "refuses to be subscribed to: error 999"),
        ({"CUPTI_NAMES": "cuLaunchKernel"}, "knows none of the driver's calls"),
        ({"CUDA_INJECTION64_PATH": "/opt/nsys/libinjection.so"}, "another tool, such as a profiler, is loaded"),
        ({"LD_LIBRARY_PATH": ""}, NO_DRIVER),
        ({"CUDA_RESULT": "2"}, "the driver cannot be used here: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_what_prevents_a_capture_is_said_before_the_program_starts(
    variables: Mapping[str, str], text: str, file: Path
) -> None:
    refused(capture("/bin/echo", "ran", options=("-o", file), **variables), 3, text)
    assert not file.exists()


def test_cupti_is_found_by_the_loader_also_in_a_capture_within_another(file: Path, tmp_path: Path) -> None:
    inner = [*MEMTOPO, "capture", "-o", str(tmp_path / "inner"), "--", sys.executable, "-c", ALLOCATE]
    result = capture(*inner, options=("-o", file), cupti="libcupti.so.13")
    assert (result.status, result.err.splitlines()[0]) == (0, f"captured 1 call of 1 process in {tmp_path / 'inner'}")
    assert file.read_bytes() == b""


def test_a_library_that_is_no_cupti_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "libcupti.so.13")
    refused(capture("/bin/echo", cupti=missing), 3, f"CUPTI ({missing}) cannot be loaded: ", "No such file")
    refused(capture("/bin/echo", cupti=str(captures.stubs() / "libcuda.so.1")), 3, "cannot be loaded")


def test_where_cupti_was_looked_for_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from memtopo.native import injection

    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "lib64").mkdir()
    error = injection._absent(())
    assert error.message == "CUPTI (libcupti.so.13 or libcupti.so.12) was not found"
    assert str(tmp_path / "lib64") in error.details[0]
    assert "select its file with --cupti" in str(error.hint)


def test_cupti_is_found_beside_the_python_of_the_program(tmp_path: Path) -> None:
    from memtopo.native import injection

    folder = tmp_path / "lib/python3.12/site-packages/nvidia/cu13/lib"
    folder.mkdir(parents=True)
    (folder / "libcupti.so.13").touch()
    python, script = tmp_path / "bin/python3", tmp_path / "bin/serve"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script.write_text(f"#!{python}\n")
    script.chmod(0o700)
    for program in (python, script):
        assert injection._candidates(None, [str(program)])[0] == str(folder / "libcupti.so.13")


def test_a_python_that_gives_no_stacks_is_refused(file: Path, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 3.14; exit 1\n")
    python.chmod(0o700)
    result = capture(python, "-c", "1", options=("-o", file, "--stacks", "python"))
    refused(result, 3, f"{python} is Python 3.14, which gives no stacks", "Python 3.11 to 3.13 do")
    assert not file.exists()


def test_a_program_that_cannot_be_started_is_refused(tmp_path: Path, file: Path) -> None:
    plain, wrong = tmp_path / "plain", tmp_path / "wrong"
    plain.touch()
    wrong.write_bytes(b"\x7fELF" + bytes(100))
    wrong.chmod(0o700)
    for program, reason in (
        (tmp_path / "none", "it does not exist"),
        (plain, "it is not executable"),
        (tmp_path, "it is a folder"),
        (wrong, "exec format error"),
    ):
        refused(capture(program, options=("-o", file)), 2, f"the program '{program}' cannot be started: {reason}")


def test_a_file_that_is_no_trace_is_not_replaced(tmp_path: Path) -> None:
    other, pipe = tmp_path / "other", tmp_path / "pipe"
    other.write_text("precious")
    os.mkfifo(pipe)
    for file in (other, pipe, tmp_path, Path("/dev/full")):
        refused(capture("/bin/echo", "ran", options=("-o", file)), 2, f"'{file}' exists, and is not a trace")
    assert other.read_text() == "precious"
    refused(capture("/bin/echo", "ran", options=("-o", tmp_path / "no/r")), 4, "cannot be written: No such file")


def test_a_record_is_replaced_and_not_that_of_a_capture_around_it(file: Path) -> None:
    for _ in range(2):
        capture(sys.executable, "-c", ALLOCATE, options=("-o", file))
    assert len(read_traces([file])) == 1
    inner = [*MEMTOPO, "capture", "--cupti", captures.cupti(), "-o"]
    result = capture(*inner, file, "--", "/bin/true", options=("-o", file))
    refused(result, 2, f"'{file}' is the record of the capture that runs this one")


def test_a_program_is_missing(tmp_path: Path) -> None:
    refused(run_memtopo("capture"), 2, "missing argument")
