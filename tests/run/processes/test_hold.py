"""`memtopo apply --hold`: a layout that is held until its release, and others that import from it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import environment
from tests.helpers.holders import until
from tests.helpers.processes import workers
from tests.helpers.python_process import PythonProcess, run_python
from tests.helpers.specs import ROOT

HELD, ATTACHED = (Path(__file__).with_name(name) for name in ("held.yaml", "attached.yaml"))
ROUNDS = str(Path(__file__).with_name("hold_rounds_program.py"))
M = ("--machine", "h200x2")


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def memtopo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python([sys.executable, "-m", "memtopo", *arguments], capture_output=True, text=True, check=False)


@contextmanager
def holding(spec: Path = HELD, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Hold a layout and wait until it serves; terminate it at the end, unless it has ended."""
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), *M, "--hold", "--json", *arguments]
    with PythonProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0, env=environment()
    ) as process:
        assert process.stderr
        assert any(line.startswith("holding ") for line in process.stderr), "it ended before it served"
        try:
            yield process
        finally:
            process.terminate()


def ended(process: subprocess.Popen[str]) -> Any:
    """Report of a hold that has ended, successfully and without anything left."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    report = json.loads(out)
    assert report["outcome"] == "ok"
    assert not any(report["left"]["ledger_after"].values())
    assert report["left"]["fds_after"] == report["left"]["fds_before"]
    return report


def test_a_held_layout_is_imported_and_ends_at_a_release() -> None:
    with holding() as process:
        done = memtopo("apply", str(ATTACHED), *M, "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["outcome"]) == (0, "ok"), done.stderr
        assert {tally["aspect"] for tally in report["checks"]["tallies"] if tally["looked_at"]} == {
            "imported", "buffer", "event", "mapped chunk", "access", "end of range"
        }  # fmt: skip
        released = memtopo("release", "held", "--json")
        assert (released.returncode, json.loads(released.stdout)["outcome"]) == (0, "ok")
        notes = ended(process)["notes"]
    assert any("until a release; served 6 handles" in note for note in notes), notes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_hold_as_a_success(number: signal.Signals) -> None:
    with holding() as process:
        process.send_signal(number)
        assert any("until a signal" in note for note in ended(process)["notes"])
    assert not os.listdir(Path(os.environ["XDG_RUNTIME_DIR"], "memtopo"))


def test_a_terminal_that_hangs_up_ends_a_multi_process_hold_as_a_success() -> None:
    with holding(ROOT / "specs" / "weights.yaml") as process:
        os.killpg(process.pid, signal.SIGHUP)
        assert any("until a signal" in note for note in ended(process)["notes"])
    assert not os.listdir(Path(os.environ["XDG_RUNTIME_DIR"], "memtopo"))


def test_a_hold_ends_at_its_deadline() -> None:
    with holding(HELD, "--for", "10ms") as process:
        assert any("until its deadline" in note for note in ended(process)["notes"])


def test_a_second_holder_of_a_name_fails_before_it_builds() -> None:
    with holding():
        done = memtopo("apply", str(HELD), *M, "--hold")
    assert done.returncode == 4
    assert "held" in done.stderr
    assert done.stdout == ""


def test_exports_of_a_multi_process_layout_are_named_by_process(tmp_path: Path) -> None:
    reader = tmp_path / "reader.yaml"
    reader.write_text(
        "memtopo: 1\nname: reader\nranges: {v: {size: 512MiB}}\n"
        "imports: {s: {from: weights/server.shards, location: gpu0, size: 256MiB, count: 2}}\n"
        "map: {v: [s]}\naccess: {v: {gpu1: r}}\n"
    )
    with holding(ROOT / "specs" / "weights.yaml") as process:
        assert memtopo("apply", str(reader), *M).returncode == 0
        checked = json.loads(memtopo("check", "weights", "--json").stdout)
        assert memtopo("release", "weights").returncode == 0
        ended(process)
    tallies = {each["aspect"]: each["looked_at"] for each in checked["checks"]["tallies"]}
    assert tallies["mapped chunk"] == 6


def test_the_death_of_a_held_process_ends_the_hold_and_is_reported() -> None:
    with holding(ROOT / "specs" / "weights.yaml") as process:
        os.kill(workers(process.pid)[-1], signal.SIGKILL)
        out, log = process.communicate(timeout=60)
    report = json.loads(out)
    assert (process.returncode, report["outcome"]) == (4, "failed")
    assert "killed by SIGKILL" in report["failure"]["error"]
    assert [line.split()[-1] for line in log.splitlines() if " ending " in line] == ["why=ended"]


def test_a_check_does_not_wait_for_a_stopped_process() -> None:
    with holding(ROOT / "specs" / "weights.yaml", "--timeout", "4s") as process:
        os.kill(workers(process.pid)[-1], signal.SIGSTOP)
        assert memtopo("check", "weights").returncode != 0
        out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    assert (process.returncode, report["outcome"]) == (4, "failed")
    outcomes = [each["outcome"] for each in report["processes"]]
    assert outcomes == ["taken down", "taken down", "died"]  # a process that waits for a dead one does not time out


def test_time_for_which_all_processes_were_stopped_is_no_silence() -> None:
    with holding(ROOT / "specs" / "weights.yaml", "--timeout", "3s") as process:
        os.killpg(process.pid, signal.SIGSTOP)
        continued = time.monotonic() + 4
        until(lambda: time.monotonic() > continued)
        os.killpg(process.pid, signal.SIGCONT)
        assert memtopo("check", "weights").returncode == 0
        assert memtopo("release", "weights").returncode == 0
        ended(process)


def test_exports_may_be_longer_than_a_packet(tmp_path: Path) -> None:
    spec = tmp_path / "many.yaml"
    exports = ", ".join(f"export-number-{index}: {{chunk: w.{index}, via: fd}}" for index in range(600))
    spec.write_text(
        "memtopo: 1\nname: many\nprocesses:\n  one:\n"
        f"    chunks: {{w: {{location: gpu0, size: 2MiB, count: 600, handles: fd}}}}\n    exports: {{{exports}}}\n"
    )
    with holding(spec) as process:
        assert len(json.loads(memtopo("show", "many", "--json").stdout)["offers"]) == 600
        assert memtopo("release", "many").returncode == 0
        ended(process)


def test_a_process_imports_memory_of_a_gpu_that_it_does_not_see(tmp_path: Path) -> None:
    spec = tmp_path / "blind.yaml"
    spec.write_text(
        "memtopo: 1\nname: blind\nprocesses:\n  one:\n    visible: gpu1\n    ranges: {v: {size: 8MiB}}\n"
        "    imports: {w: {from: held/w, location: gpu0, size: 2MiB, count: 4}}\n"
        "    map: {v: [w]}\n    access: {v: {gpu1: r}}\n"
    )
    with holding():
        done = memtopo("apply", str(spec), *M, "--json")
    assert json.loads(done.stdout)["outcome"] == "ok", done.stdout


def test_an_import_that_differs_from_its_declaration_fails(tmp_path: Path) -> None:
    spec = tmp_path / "wrong.yaml"
    spec.write_text(ATTACHED.read_text().replace("count: 4", "count: 3").replace("8MiB", "6MiB"))
    with holding():
        done = memtopo("apply", str(spec), *M, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["outcome"]) == (4, "failed")
    assert "import 'w' declares count 3; held/w has 4" in report["failure"]["error"]


def test_an_import_from_a_layout_that_is_not_held_fails() -> None:
    done = memtopo("apply", str(ATTACHED), *M, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["outcome"]) == (3, "failed")
    assert "held" in report["failure"]["error"]


def test_the_number_of_gpus_of_a_node_is_for_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    done = memtopo("apply", str(HELD), *M, "--gpus", "1")
    assert (done.returncode, "add --on ray" in done.stderr) == (2, True)
    monkeypatch.setenv("MEMTOPO_GPUS", "1")
    assert memtopo("apply", str(HELD), *M).returncode == 0


def test_options_of_a_hold_require_hold(tmp_path: Path) -> None:
    """A folder of sockets is one without it, too: layouts are imported from there."""
    for flags in (("--for", "5s"), ("--socket", str(tmp_path / "x")), ("--metrics", str(tmp_path / "x"))):
        done = memtopo("apply", str(HELD), *M, *flags)
        assert done.returncode == 2
        assert "add --hold" in done.stderr
    assert memtopo("apply", str(HELD), *M, "--with", "nothing").returncode == 2


def test_variables_of_options_of_a_hold_are_ignored_without_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTOPO_SOCKET", "/nowhere/kv.sock")
    monkeypatch.setenv("MEMTOPO_FOR", "5s")
    assert memtopo("apply", str(HELD), *M).returncode == 0


def rounds(count: int, machine: str) -> None:
    """Assert that two processes have the same resources after so many holds, attachments and releases."""
    command = [sys.executable, ROUNDS]
    with PythonProcess(
        [*command, "hold", machine, str(count)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as holder:
        try:
            done = run_python([*command, "attach", machine, str(count)], capture_output=True, check=True, timeout=200)
            out, _ = holder.communicate(timeout=60)
        finally:
            holder.kill()
    for said in (done.stdout, out):
        found = json.loads(said)
        assert found["fds"][0] == found["fds"][1]
        assert found["memory"][0] == found["memory"][1]


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.exhaustive(seconds=3))])
def test_many_holds_and_attachments_leave_nothing(count: int) -> None:
    rounds(count, "h200x2")
