"""Output to closed pipes, full disks, closed streams, and streams with limited encodings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from tests.helpers.command_line import (
    MEMTOPO,
    QUICKSTART,
    ROOT,
    CommandResult,
    environment,
    run_memtopo,
    run_shell,
    without_crash,
)
from tests.helpers.holders import until
from tests.helpers.python_process import PythonProcess

APPLY = f"apply {QUICKSTART} --machine h200x2"
ON_CLOSED = """
import os, sys
from memtopo.cli import main
for number in map(int, sys.argv.pop(1)):
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)
main()
"""
"""Program that runs memtopo after closing the descriptors of its first argument, as if it had started without them."""


@pytest.mark.parametrize(("command", "reader"), [(APPLY, "head -1"), ("machines", "true")])
def test_a_closed_pipe_of_a_shell_changes_neither_messages_nor_status(command: str, reader: str) -> None:
    result = run_shell(f'memtopo {command} | {reader} >/dev/null; echo "${{PIPESTATUS[0]}}"')
    assert (result.out, result.err) == ("0\n", "")


@pytest.mark.parametrize("command", [APPLY, "probe -m h200x4", "--help"])
@pytest.mark.parametrize("lines", [0, 1])
def test_a_closed_pipe_changes_neither_messages_nor_status(command: str, lines: int) -> None:
    """Closed at once, or after a line."""
    with PythonProcess(
        [*MEMTOPO, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout
        assert process.stderr
        for _ in range(lines):
            process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


def test_a_pipe_closed_after_one_line_of_many_is_no_failure(tmp_path: Path) -> None:
    """It hides no failure either."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("chunks:\n" + "".join(f"  c{i}: {{size: {i}MB}}\n" for i in range(900)))
    result = run_shell('memtopo validate "$1" -m h200x2 | head -1 >/dev/null; echo "${PIPESTATUS[0]}"', str(spec))
    assert (result.out, result.err) == ("1\n", "")


def test_a_closed_stderr_changes_neither_results_nor_status() -> None:
    result = run_shell("memtopo apply nowhere -m h200x2 --json 2>&1 >/dev/null | true; echo ${PIPESTATUS[0]}")
    assert (result.out, result.err) == ("1\n", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_discarded_and_their_numbers_not_reused(closed: str) -> None:
    numbers = "".join(each.partition(">&-")[0] or "1" for each in closed.replace("<", "0>").split())
    for status, command in ((0, APPLY), (1, "apply nowhere -m h200x2 --json"), (2, "nonsense")):
        with PythonProcess(
            [sys.executable, "-c", ON_CLOSED, numbers, *command.split()],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        ) as process:  # fmt: skip
            out, err = process.communicate(timeout=60)
        result = without_crash(CommandResult(process.returncode, out.decode(), err.decode()))
        assert result.status == status
        assert not ("1" in numbers and result.out)
        assert not ("2" in numbers and result.err)


def test_a_program_that_a_shell_starts_without_streams_is_run() -> None:
    assert run_shell(f"memtopo {APPLY} <&- >&- 2>&-; echo $?").out == "0\n"


def test_apply_leaks_no_descriptors_with_closed_streams(tmp_path: Path) -> None:
    result = run_shell(f'memtopo {APPLY} --json <&- 2>&- >"$1"', str(tmp_path / "out"))
    assert result.status == 0
    assert '"exit_code": 0' in (tmp_path / "out").read_text()


@pytest.mark.parametrize("command", [APPLY, "machines", "--help", "--version"])
def test_results_that_cannot_be_written_are_a_failure(command: str) -> None:
    found = without_room(command)
    assert found == (4, b"memtopo: error: the results cannot be written: no space left on device\n")


def test_a_failed_command_keeps_its_status_if_results_cannot_be_written() -> None:
    status, err = without_room("plan nowhere -m h200x2 --json")
    assert status == 1
    assert b"cannot be written" in err


@pytest.mark.parametrize(
    ("full", "released"),
    [("stdout", False), ("stdout", True), ("stderr", False), pytest.param("both", False, marks=pytest.mark.exhaustive)],
)
def test_a_signal_ends_a_held_layout_whose_output_nobody_reads(runtime: Path, full: str, *, released: bool) -> None:
    """The signal comes while the layout is held, or after its release. Output that finds no room is lost."""
    (reader, out), log = full_pipe(), (runtime / "log").open("wb")
    streams = {"stdout": (out, log), "stderr": (log, out), "both": (out, out)}[full]
    command = [*MEMTOPO, *APPLY.split(), "--hold"]
    here = environment(XDG_RUNTIME_DIR=str(runtime))
    with PythonProcess(command, stdout=streams[0], stderr=streams[1], env=here, cwd=ROOT) as process:
        until(lambda: listening(runtime / "memtopo" / "quickstart.sock"))
        if released:
            with connect(endpoint("quickstart")) as client:
                client.release()
        process.terminate()
        try:
            status = process.wait(60)
        finally:
            process.kill()
    assert status == (0 if full == "stderr" else 4)
    assert (b"cannot be written: their reader does not read" in (runtime / "log").read_bytes()) == (full == "stdout")
    for each in (reader, out):
        os.close(each)
    log.close()


def full_pipe() -> tuple[int, int]:
    """A pipe without room, into which writes wait."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 65536):
            pass
    os.set_blocking(writer, True)
    return reader, writer


def listening(path: Path) -> bool:
    """Return whether a process accepts connections at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return sock.connect_ex(str(path)) == 0


def without_room(command: str) -> tuple[int, bytes]:
    """Exit status and messages of a command whose results go to a full disk."""
    with (
        Path("/dev/full").open("wb") as full,
        PythonProcess([*MEMTOPO, *command.split()], stdout=full, stderr=subprocess.PIPE, env=environment()) as process,
    ):
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("encoding", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii:strict"}])
def test_characters_missing_from_an_encoding_are_escaped_in_all_output(
    tmp_path: Path, encoding: dict[str, str]
) -> None:
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | encoding
    spec = tmp_path / "spéc.yaml"
    spec.write_text("memtopo: 1\nname: é\n", encoding="utf-8")
    assert "page.0 \\u2026 page.15" in run_memtopo("plan", QUICKSTART, "-m", "h200x2", **plain).out
    result = run_memtopo("validate", spec, "-m", "h200x2", **plain)
    assert result.status == 1
    assert result.out.isascii()
    assert run_memtopo("x\u2026", **plain).err.isascii()


def test_file_names_that_are_not_utf8_are_escaped() -> None:
    """In text and in JSON."""
    name = os.fsdecode(b"/\xff")
    result = run_memtopo("plan", name, "-m", "h200x2")
    assert (result.status, result.err.split(":")[0]) == (1, "/\\udcff")
    assert run_memtopo("plan", name, "-m", "h200x2", "--json").document["results"][0]["file"] == "/\udcff"
    assert "/\\udcff" in run_shell("memtopo plan x -m $'/\\xff'").err
