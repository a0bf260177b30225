"""The environment speaks for flags that are not given, and the terminal's own variables are heeded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART, run_memtopo


def test_memtopo_machine_sets_the_machine_in_child_processes_too() -> None:
    assert run_memtopo("validate", QUICKSTART, MEMTOPO_MACHINE="h200x4").out == f"{QUICKSTART}: ok on h200x4\n"


def test_a_flag_overrides_its_variable(run_inline: InlineRunner) -> None:
    assert "ok on h200x2" in run_inline("validate", QUICKSTART, "-m", "h200x2", MEMTOPO_MACHINE="h200x4").out


@pytest.mark.parametrize("command", ["plan", "draw", "apply", "budget", "diff", "replay"])
def test_several_machines_are_for_validate(run_inline: InlineRunner, tmp_path: Path, command: str) -> None:
    """Of several in the variable, which a job sets for it, other commands use the last one."""
    record = tmp_path / "run.jsonl"
    run_inline("apply", QUICKSTART, "-m", "h200x2", "--trace", record)
    files: dict[str, list[str | Path]] = {"diff": [QUICKSTART, QUICKSTART], "replay": [record]}
    words = [command, *files.get(command, [QUICKSTART])]
    refused = run_inline(*words, "-m", "h100x1", "-m", "h200x2", MEMTOPO_MACHINE="h100x1")
    assert (refused.status, refused.out) == (2, "")
    assert "there are several machines: h100x1, h200x2" in refused.err
    assert "'memtopo validate' takes several" in refused.err
    found = run_inline(*words, MEMTOPO_MACHINE="h100x1 h200x2")
    twice = run_inline(*words, "-m", "h200x2", "-m", "h200x2")
    assert [(each.status, "h200x2" in each.out) for each in (found, twice)] == [(0, True)] * 2


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "TRUE", "t", "y"])
def test_memtopo_json_sets_json_for_results_and_failures(run_inline: InlineRunner, value: str) -> None:
    assert run_inline("validate", QUICKSTART, "-m", "h200x2", MEMTOPO_JSON=value).document["errors"] == 0
    assert run_inline("validate", QUICKSTART, "-m", "h9000", MEMTOPO_JSON=value).document["error"]["exit_code"] == 3


@pytest.mark.parametrize("value", ["", "0", "false", "no", "off", "f", "n"])
def test_memtopo_json_can_be_false(run_inline: InlineRunner, value: str) -> None:
    assert run_inline("validate", QUICKSTART, "-m", "h200x2", MEMTOPO_JSON=value).out.endswith("ok on h200x2\n")
    assert run_inline("validate", QUICKSTART, "-m", "h9000", MEMTOPO_JSON=value).out == ""


def test_a_variable_that_is_no_boolean_is_wrong_usage(run_inline: InlineRunner) -> None:
    """The message names the variable."""
    result = run_inline("validate", QUICKSTART, MEMTOPO_JSON="perhaps")
    assert (result.status, result.out) == (2, "")
    assert "MEMTOPO_JSON" in result.err


def test_variables_of_probe_set_its_flags(run_inline: InlineRunner, tmp_path: Path) -> None:
    """MEMTOPO_OUTPUT, MEMTOPO_IDENTIFY, MEMTOPO_AGAINST and MEMTOPO_PROBE_FORMAT."""
    file = tmp_path / "ours.json"
    result = run_inline(
        "probe", MEMTOPO_MACHINE="h200x2", MEMTOPO_OUTPUT=str(file), MEMTOPO_IDENTIFY="1", MEMTOPO_JSON="1"
    )
    assert (result.status, result.document["machine"]) == (0, json.loads(file.read_text()))
    result = run_inline("probe", MEMTOPO_MACHINE="h200x2", MEMTOPO_PROBE_FORMAT="markdown", MEMTOPO_AGAINST="h200x4")
    assert result.status == 7
    assert result.out.startswith("## h200x2 (simulated)")


def test_an_empty_variable_is_unset(run_inline: InlineRunner) -> None:
    result = run_inline("apply", QUICKSTART, MEMTOPO_MACHINE="", CUDA_VISIBLE_DEVICES="")
    assert result.status == 3
    assert "--machine h200x2" in result.err


@pytest.mark.parametrize("name", ["MEMTOPO_JSON", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"])
@pytest.mark.parametrize("value", ["\x1b[31m", "9" * 5000, "-1", "é"])
def test_nonsense_in_a_variable_is_wrong_usage_and_no_crash(run_inline: InlineRunner, name: str, value: str) -> None:
    assert run_inline("plan", QUICKSTART, "-m", "h200x2", **{name: value}).status in (0, 2)
