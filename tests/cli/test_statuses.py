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
def test_0_it_is_so(command: str) -> None:
    """What works says so on stdout, has nothing to say on stderr, and exits 0"""
    said = memtopo(command, QUICKSTART, M)
    assert (said.status, said.err) == (0, "")
    assert "h200x2" in said.out


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_1_invalid(here: Here, spec: Path, command: str) -> None:
    """An invalid spec is 1 for commands that would carry it out, and why is a message"""
    spec.write_text(WRONG)
    said = here(command, spec, M)
    assert (said.status, said.out) == (1, "")
    assert f"{spec}:3:" in said.err
    assert "did you mean 'size'?" in said.err


def test_1_faults_are_what_validate_is_asked_for(here: Here, spec: Path) -> None:
    """The faults are the result of validate, so they stand on stdout"""
    spec.write_text(WRONG)
    said = here("validate", spec, M)
    assert (said.status, said.err) == (1, "")
    assert f"{spec}:3:" in said.out


def test_3_no_gpu() -> None:
    """Without a GPU, local is 3, with a hint at a machine that needs none; it is never another machine"""
    said = memtopo("apply", QUICKSTART, CUDA_VISIBLE_DEVICES="")
    assert (said.status, said.out) == (3, "")
    assert said.err.startswith("memtopo: error: no ")
    assert "--machine h200x2" in said.err


def test_4_failed_and_undone(here: Here, spec: Path) -> None:
    """A driver call that fails is 4: the report is a result, names the call, and says that everything was undone"""
    spec.write_text(FULL)
    said = here("apply", spec, M)
    assert (said.status, said.err) == (4, "")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said.out
    assert said.out.endswith("failed: everything was undone\n")


def test_6_not_as_declared(here: Here, spec: Path) -> None:
    """Memory that is built, but not as declared, is 6: the report has what was wanted beside what was seen"""
    spec.write_text(ELSEWHERE)
    said = here("apply", spec, M)
    assert (said.status, said.err) == (6, "")
    assert "0x600000000000" in said.out
    assert said.out.endswith("different: 1 thing is not as declared; everything was undone\n")


@pytest.mark.parametrize(
    ("status", "text"), [(0, ONE_CHUNK.format(size="2MiB", wish="")), (1, WRONG), (4, FULL), (6, ELSEWHERE)]
)
def test_json_is_one_document(here: Here, spec: Path, status: int, text: str) -> None:
    """With --json, apply leaves one whole document on stdout, whatever came of it"""
    spec.write_text(text)
    said = here("apply", spec, M, "--json")
    assert said.status == status
    assert said.document.get("exit_code", 1) == status


@pytest.mark.parametrize("command", ["validate", "plan"])
@pytest.mark.parametrize("text", [WRONG, ONE_CHUNK.format(size="2MiB", wish=""), "a: [", ""])
def test_json_of_other_commands(here: Here, spec: Path, command: str, text: str) -> None:
    """With --json, validate and plan leave one whole document on stdout, whether the spec is valid or not"""
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
def test_json_of_failures(here: Here, status: int, arguments: list[str]) -> None:
    """With --json, or with its variable, every failure is one document on stdout beside the message on stderr"""
    said = here(*arguments, **({} if "--json" in arguments else {"MEMTOPO_JSON": "1"}))
    assert said.status == status
    assert said.err
    if status > 1:
        assert said.document["error"]["exit_code"] == status
        assert said.document["error"]["message"] in said.err or not arguments
    else:
        assert said.document["errors"] == 1


def test_json_without_a_gpu() -> None:
    """With --json, no GPU is a document too"""
    said = memtopo("apply", QUICKSTART, "--json", CUDA_VISIBLE_DEVICES="")
    assert said.status == 3
    assert "--machine h200x2" in said.document["error"]["hint"]


def test_json_after_two_dashes_is_a_name(here: Here) -> None:
    """What stands after -- is the name of a spec, even if it looks like a flag"""
    said = here("validate", M, "--", "--json")
    assert (said.status, said.err) == (1, "")
    assert said.out.startswith("--json: error[MT001]")


def test_warnings_do_not_stop(here: Here, spec: Path) -> None:
    """A warning is told and the exit status stays 0: on stdout by validate, on stderr beside other results"""
    spec.write_text("memtopo: 1\nname: warned\nchunks: {c: {location: gpu0, size: 2MiB}}\n")
    for command in ("validate", "plan", "apply"):
        said = here(command, spec, M)
        assert said.status == 0
        assert "warning[MT501]" in (said.out if command == "validate" else said.err)
