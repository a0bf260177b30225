"""docs/ci.md: its commands print what stands there, and its tables are whole."""

from __future__ import annotations

import re

import pytest

from memtopo.output.formats import FORMATS
from tests.cli.running import shell
from tests.helpers.specs import ROOT, diagnose

PAGE = (ROOT / "docs" / "ci.md").read_text()
CONSOLE = re.findall(r"^```console\n\$ (.*)\n((?s:.*?))^```$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "expected"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_commands(command: str, expected: str) -> None:
    """A command of the page prints what stands under it; … stands for anything"""
    said = shell(f'cd "$1" && {command}', str(ROOT), COLUMNS="80", GITHUB_ACTIONS="")
    pattern = "(?s:.*)".join(re.escape(part) for part in expected.split("…\n"))
    assert re.fullmatch(pattern, said.out), said.out + said.err


def test_the_spec() -> None:
    """The page's spec is silent because of its comment"""
    (spec,) = re.findall(r"^```yaml\n((?s:.*?))^```$", PAGE, re.MULTILINE)
    assert diagnose(spec) == ()
    assert [fault.code for fault in diagnose(re.sub("#.*", "", spec))] == ["MT501"]


def test_every_form_is_there() -> None:
    """The page has a row for each form"""
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)) == FORMATS


def test_nothing_else_is_told() -> None:
    """Every flag and every variable that the page names is one of the program's"""
    help = shell("memtopo validate --help").out
    told = set(re.findall(r"MEMTOPO_[A-Z]+", PAGE)) | set(re.findall(r"`(--[a-z]+)", PAGE))
    assert {word for word in told if word not in help} == set()
