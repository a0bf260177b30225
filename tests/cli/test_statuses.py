"""What the exit status tells, what goes to which stream, and that `--json` is one document whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Here
from tests.cli.running import QUICKSTART, memtopo

M = "--machine=h200x2"
ONE_CHUNK = """memtopo: 1
name: one
ranges: {{a: {{size: {size}{wish}}}}}
chunks: {{c: {{location: gpu0, size: {size}}}}}
map: {{a: [c]}}
access: {{a: {{gpu0: rw}}}}
"""
FULL = ONE_CHUNK.format(size="3TiB", wish="").replace("gpu0, size", "host, size")  # more than the simulator's host has
ELSEWHERE = ONE_CHUNK.format(size="2MiB", wish=", address: 0x600000000000, fixed: true")  # no such simulated address
WRONG = "memtopo: 1\nname: wrong\nchunks: {c: {location: gpu0, sise: 2MiB}}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A path for a spec."""
    return tmp_path / "spec.yaml"


@pytest.mark.parametrize("command", ["validate", "plan", "apply"])
def test_success_exits_with_0_and_an_empty_stderr(command: str) -> None:
    said = memtopo(command, QUICKSTART, M)
    assert (said.status, said.err) == (0, "")
    assert "h200x2" in said.out


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_an_invalid_spec_exits_with_1_and_a_message(here: Here, spec: Path, command: str) -> None:
    """For commands that would carry it out."""
    spec.write_text(WRONG)
    said = here(command, spec, M)
    assert (said.status, said.out) == (1, "")
    assert f"{spec}:3:" in said.err
    assert "did you mean 'size'?" in said.err


def test_diagnostics_of_validate_are_on_stdout(here: Here, spec: Path) -> None:
    spec.write_text(WRONG)
    said = here("validate", spec, M)
    assert (said.status, said.err) == (1, "")
    assert f"{spec}:3:" in said.out


def test_local_without_a_gpu_exits_with_3() -> None:
    """The hint names a machine that needs none; no other machine is used."""
    said = memtopo("apply", QUICKSTART, CUDA_VISIBLE_DEVICES="")
    assert (said.status, said.out) == (3, "")
    assert said.err.startswith("memtopo: error: no ")
    assert "--machine h200x2" in said.err


def test_a_failed_driver_call_exits_with_4_after_undoing(here: Here, spec: Path) -> None:
    """The report is on stdout, names the call, and says that everything was undone."""
    spec.write_text(FULL)
    said = here("apply", spec, M)
    assert (said.status, said.err) == (4, "")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said.out
    assert said.out.endswith("failed: everything was undone\n")


def test_memory_not_as_declared_exits_with_6(here: Here, spec: Path) -> None:
    """The report has the expected and the observed value."""
    spec.write_text(ELSEWHERE)
    said = here("apply", spec, M)
    assert (said.status, said.err) == (6, "")
    assert "0x600000000000" in said.out
    assert said.out.endswith("different: 1 thing is not as declared; everything was undone\n")


@pytest.mark.parametrize(
    ("status", "text"), [(0, ONE_CHUNK.format(size="2MiB", wish="")), (1, WRONG), (4, FULL), (6, ELSEWHERE)]
)
def test_json_of_apply_is_one_document_whatever_the_result(here: Here, spec: Path, status: int, text: str) -> None:
    spec.write_text(text)
    said = here("apply", spec, M, "--json")
    assert said.status == status
    assert said.document.get("exit_code", 1) == status


@pytest.mark.parametrize("command", ["validate", "plan"])
@pytest.mark.parametrize("text", [WRONG, ONE_CHUNK.format(size="2MiB", wish=""), "a: [", ""])
def test_json_of_validate_and_plan_is_one_document(here: Here, spec: Path, command: str, text: str) -> None:
    """For valid and for invalid specs."""
    spec.write_text(text)
    said = here(command, spec, M, "--json")
    assert isinstance(said.document, dict)
    assert ("diagnostics" in said.document) == (command == "validate" or said.status == 1)


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (1, ["apply", "nowhere.yaml", M]),
        (1, ["plan", "/", M]),
        (2, []),
        (2, ["frobnicate", "--json"]),
        (2, ["--json", "plan", "x.yaml"]),
        (2, ["plan", "--json"]),
        (2, ["plan", "a", "b", "--json"]),
        (2, ["plan", "", M, "--json"]),
        (2, ["plan", QUICKSTART, "--frobnicate", "--json"]),
        (2, ["plan", QUICKSTART, "--json", "--machine"]),
        (3, ["plan", QUICKSTART, "--machine=h9000", "--json"]),
        (3, ["plan", QUICKSTART, "--machine=nowhere.json", "--json"]),
        (3, ["machines", f"{QUICKSTART}", "--json"]),
        (4, ["probe", M, "--json", "-o", "/nowhere/x.json"]),
    ],
)
def test_json_of_a_failure_is_one_document_beside_the_message(here: Here, status: int, arguments: list[str]) -> None:
    """With the flag or its variable."""
    said = here(*arguments, **({} if "--json" in arguments else {"MEMTOPO_JSON": "1"}))
    assert said.status == status
    assert said.err
    if status > 1:
        assert said.document["error"]["exit_code"] == status
        assert said.document["error"]["message"] in said.err or not arguments
    else:
        assert said.document["errors"] == 1


def test_json_without_a_gpu_is_one_document() -> None:
    said = memtopo("apply", QUICKSTART, "--json", CUDA_VISIBLE_DEVICES="")
    assert said.status == 3
    assert "--machine h200x2" in said.document["error"]["hint"]


def test_json_after_two_dashes_is_a_file_name(here: Here) -> None:
    said = here("validate", M, "--", "--json")
    assert (said.status, said.err) == (1, "")
    assert said.out.startswith("--json: error[MT001]")


def test_warnings_leave_the_exit_status_0(here: Here, spec: Path) -> None:
    """They are on stdout for validate and on stderr beside other results."""
    spec.write_text("memtopo: 1\nname: warned\nchunks: {c: {location: gpu0, size: 2MiB}}\n")
    for command in ("validate", "plan", "apply"):
        said = here(command, spec, M)
        assert said.status == 0
        assert "warning[MT501]" in (said.out if command == "validate" else said.err)
