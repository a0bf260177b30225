"""Exit statuses, streams of results and messages, and `--json`, which prints one document in every case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.cli.few_processes_program import UNUSABLE
from tests.helpers.command_line import QUICKSTART, ROOT, environment, run_memtopo
from tests.helpers.python_process import run_python

M = "--machine=h200x2"
ONE_CHUNK = """memtopo: 1
name: one
ranges: {{a: {{size: {size}{wish}}}}}
chunks: {{c: {{location: gpu0, size: {size}}}}}
map: {{a: [c]}}
access: {{a: {{gpu0: rw}}}}
"""
FULL = """memtopo: 1
name: one
ranges: {a: {size: 2MiB, align: 64TiB, count: 4}}
chunks: {c: {location: gpu0, size: 2MiB, count: 4}}
map: {a: [{chunk: c, each: 1}]}
access: {a: {gpu0: rw}}
"""  # more aligned addresses than there are
ELSEWHERE = ONE_CHUNK.format(size="2MiB", wish=", address: 0x600000000000, fixed: true")  # no such simulated address
WRONG = "memtopo: 1\nname: wrong\nchunks: {c: {location: gpu0, sise: 2MiB}}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A path for a spec."""
    return tmp_path / "spec.yaml"


@pytest.mark.parametrize("command", ["validate", "plan", "apply"])
def test_success_exits_with_0_and_an_empty_stderr(command: str) -> None:
    result = run_memtopo(command, QUICKSTART, M)
    assert (result.status, result.err) == (0, "")
    assert "h200x2" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("validate", "spec.yaml"), "the current folder no longer exists"),
        (("apply", QUICKSTART, M, "--trace", "calls.jsonl"), "the current folder no longer exists"),
        (("apply", QUICKSTART, M, "--report", "page.html"), "'page.html' cannot be written: its folder does not exist"),
        (("ls", "--socket", "./socket"), "the current folder no longer exists"),
    ],
)
def test_a_path_in_a_current_folder_that_was_removed_is_wrong_usage(
    run_inline: InlineRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str | Path, ...],
    words: str,
) -> None:
    """Absolute paths work there."""
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    result = run_inline(*arguments)
    assert (result.status, result.out) == (2, "")
    assert words in result.err
    assert run_inline("apply", QUICKSTART, M).status == 0


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_an_invalid_spec_exits_with_1_and_a_message(run_inline: InlineRunner, spec: Path, command: str) -> None:
    """For commands that would carry it out."""
    spec.write_text(WRONG)
    result = run_inline(command, spec, M)
    assert (result.status, result.out) == (1, "")
    assert f"{spec}:3:" in result.err
    assert "did you mean 'size'?" in result.err


def test_diagnostics_of_validate_are_on_stdout(run_inline: InlineRunner, spec: Path) -> None:
    spec.write_text(WRONG)
    result = run_inline("validate", spec, M)
    assert (result.status, result.err) == (1, "")
    assert f"{spec}:3:" in result.out


def test_local_without_a_gpu_exits_with_3() -> None:
    """The hint names a machine that needs none; no other machine is used."""
    result = run_memtopo("apply", QUICKSTART, CUDA_VISIBLE_DEVICES="")
    assert (result.status, result.out) == (3, "")
    assert result.err.startswith("memtopo: error: no ")
    assert "--machine h200x2" in result.err


def test_a_failed_driver_call_exits_with_4_after_undoing(run_inline: InlineRunner, spec: Path) -> None:
    """The report is on stdout, names the call, and says that everything was undone."""
    spec.write_text(FULL)
    result = run_inline("apply", spec, M)
    assert (result.status, result.err) == (4, "")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in result.out
    assert result.out.endswith("failed: everything was undone\n")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("weights.yaml",), "process 1 of the layout cannot be started"),
        (("vulkan-frame.yaml", "--with", "camera=sleep 60"), "the program of 'camera' cannot be started"),
    ],
)
def test_a_system_that_starts_no_process_is_exit_status_4(arguments: tuple[str, ...], what: str) -> None:
    spec, *others = arguments
    done = _apply_without_processes(spec, *others)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert done.stderr.startswith(f"memtopo: error: {what}: resource temporarily unavailable\n")
    assert "hint: raise the limit of processes: 'ulimit -u'" in done.stderr


def test_a_layout_of_one_process_needs_no_thread() -> None:
    """Its progress is shown by the calls of its steps, and no more in the middle of one."""
    done = _apply_without_processes("quickstart.yaml", MEMTOPO_PROGRESS="log")
    assert done.returncode == 0, done.stderr


def _apply_without_processes(spec: str, *others: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `apply` on a spec of specs/ where no process and no thread can be started."""
    command = [sys.executable, "-m", "tests.cli.few_processes_program", "apply", str(ROOT / "specs" / spec)]
    done = run_python(
        [*command, "-mh200x4", *others],
        env=environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == UNUSABLE:
        pytest.skip("no other user can run this Python")
    return done


def test_memory_not_as_declared_exits_with_6(run_inline: InlineRunner, spec: Path) -> None:
    """The report has the expected and the observed value."""
    spec.write_text(ELSEWHERE)
    result = run_inline("apply", spec, M)
    assert (result.status, result.err) == (6, "")
    assert "0x600000000000" in result.out
    assert result.out.endswith("different: 1 thing is not as declared; everything was undone\n")


@pytest.mark.parametrize(
    ("status", "text"), [(0, ONE_CHUNK.format(size="2MiB", wish="")), (1, WRONG), (4, FULL), (6, ELSEWHERE)]
)
def test_json_of_apply_is_one_document_whatever_the_result(
    run_inline: InlineRunner, spec: Path, status: int, text: str
) -> None:
    spec.write_text(text)
    result = run_inline("apply", spec, M, "--json")
    assert result.status == status
    assert result.document.get("exit_code", 1) == status


@pytest.mark.parametrize("command", ["validate", "plan"])
@pytest.mark.parametrize("text", [WRONG, ONE_CHUNK.format(size="2MiB", wish=""), "a: [", ""])
def test_json_of_validate_and_plan_is_one_document(
    run_inline: InlineRunner, spec: Path, command: str, text: str
) -> None:
    """For valid and for invalid specs."""
    spec.write_text(text)
    result = run_inline(command, spec, M, "--json")
    assert isinstance(result.document, dict)
    assert ("diagnostics" in result.document) == (command == "validate" or result.status == 1)


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (1, ["apply", "nowhere.yaml", M]),
        (1, ["plan", "/", M]),
        (2, []),
        (2, ["frobnicate", "--json"]),
        (2, ["--json", "plan", "x.yaml"]),
        (2, ["plan", "--json"]),
        (2, ["plan", "a", "b", "c", "--json"]),
        (2, ["plan", "", M, "--json"]),
        (2, ["plan", QUICKSTART, "--frobnicate", "--json"]),
        (2, ["plan", QUICKSTART, "--json", "--machine"]),
        (3, ["plan", QUICKSTART, "--machine=h9000", "--json"]),
        (3, ["plan", QUICKSTART, "--machine=nowhere.json", "--json"]),
        (3, ["machines", f"{QUICKSTART}", "--json"]),
        (4, ["probe", M, "--json", "-o", "/nowhere/x.json"]),
    ],
)
def test_json_of_a_failure_is_one_document_beside_the_message(
    run_inline: InlineRunner, status: int, arguments: list[str]
) -> None:
    """With the flag or its variable."""
    result = run_inline(*arguments, **({} if "--json" in arguments else {"MEMTOPO_JSON": "1"}))
    assert result.status == status
    assert result.err
    if status > 1:
        assert result.document["error"]["exit_code"] == status
        assert result.document["error"]["message"] in result.err or not arguments
    else:
        assert result.document["errors"] == 1


def test_json_without_a_gpu_is_one_document() -> None:
    result = run_memtopo("apply", QUICKSTART, "--json", CUDA_VISIBLE_DEVICES="")
    assert result.status == 3
    assert "--machine h200x2" in result.document["error"]["hint"]


def test_json_after_two_dashes_is_a_file_name(run_inline: InlineRunner) -> None:
    result = run_inline("validate", M, "--", "--json")
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith("--json: error[MT001]")


def test_warnings_leave_the_exit_status_0(run_inline: InlineRunner, spec: Path) -> None:
    """They are on stdout for validate and on stderr beside other results."""
    spec.write_text("memtopo: 1\nname: warned\nchunks: {c: {location: gpu0, size: 2MiB}}\n")
    for command in ("validate", "plan", "apply"):
        result = run_inline(command, spec, M)
        assert result.status == 0
        assert "warning[MT501]" in (result.out if command == "validate" else result.err)
