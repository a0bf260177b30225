"""The environment speaks for flags that are not given, and the terminal's own variables are heeded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Here
from tests.cli.running import QUICKSTART, memtopo


def test_machine() -> None:
    """MEMTOPO_MACHINE is --machine, in a process of its own too"""
    assert memtopo("validate", QUICKSTART, MEMTOPO_MACHINE="h200x4").out == f"{QUICKSTART}: ok on h200x4\n"


def test_the_flag_wins(here: Here) -> None:
    """A flag that is given wins over its variable"""
    assert "ok on h200x2" in here("validate", QUICKSTART, "-m", "h200x2", MEMTOPO_MACHINE="h200x4").out


@pytest.mark.parametrize("value", ["1", "true", "yes", "on", "TRUE", "t", "y"])
def test_json(here: Here, value: str) -> None:
    """MEMTOPO_JSON is --json, for results and for failures alike"""
    assert here("validate", QUICKSTART, "-m", "h200x2", MEMTOPO_JSON=value).document["errors"] == 0
    assert here("validate", QUICKSTART, "-m", "h9000", MEMTOPO_JSON=value).document["error"]["exit_code"] == 3


@pytest.mark.parametrize("value", ["", "0", "false", "no", "off", "f", "n"])
def test_no_json(here: Here, value: str) -> None:
    """MEMTOPO_JSON can say no"""
    assert here("validate", QUICKSTART, "-m", "h200x2", MEMTOPO_JSON=value).out.endswith("ok on h200x2\n")
    assert here("validate", QUICKSTART, "-m", "h9000", MEMTOPO_JSON=value).out == ""


def test_neither_yes_nor_no(here: Here) -> None:
    """What is no boolean is wrong usage, and the message names the variable"""
    said = here("validate", QUICKSTART, MEMTOPO_JSON="perhaps")
    assert (said.status, said.out) == (2, "")
    assert "MEMTOPO_JSON" in said.err


def test_probe(here: Here, tmp_path: Path) -> None:
    """MEMTOPO_OUTPUT, MEMTOPO_IDENTIFY, MEMTOPO_AGAINST and MEMTOPO_PROBE_FORMAT are probe's flags"""
    file = tmp_path / "ours.json"
    said = here("probe", MEMTOPO_MACHINE="h200x2", MEMTOPO_OUTPUT=str(file), MEMTOPO_IDENTIFY="1", MEMTOPO_JSON="1")
    assert (said.status, said.document["machine"]) == (0, json.loads(file.read_text()))
    said = here("probe", MEMTOPO_MACHINE="h200x2", MEMTOPO_PROBE_FORMAT="markdown", MEMTOPO_AGAINST="h200x4")
    assert said.status == 7
    assert said.out.startswith("## h200x2 (simulated)")


def test_an_empty_variable_is_none(here: Here) -> None:
    """A variable that is set to nothing is as one that is not set"""
    said = here("validate", QUICKSTART, MEMTOPO_MACHINE="", CUDA_VISIBLE_DEVICES="")
    assert said.status == 3
    assert "--machine h200x2" in said.err


@pytest.mark.parametrize("name", ["MEMTOPO_JSON", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"])
@pytest.mark.parametrize("value", ["\x1b[31m", "9" * 5000, "-1", "é"])
def test_nonsense(here: Here, name: str, value: str) -> None:
    """Nonsense in a variable is no crash"""
    assert here("plan", QUICKSTART, "-m", "h200x2", **{name: value}).status in (0, 2)
