"""docs/ci.md: its commands print what stands there, and its tables are whole."""

from __future__ import annotations

import re

import pytest

from memtopo.output.formats import FORMATS
from tests.helpers.command_line import run_shell
from tests.helpers.specs import ROOT, diagnose

PAGE = (ROOT / "docs" / "ci.md").read_text()
CONSOLE = re.findall(r"^```console\n\$ (.*)\n((?s:.*?))^```$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "expected"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_commands_on_the_page_print_the_output_below_them(command: str, expected: str) -> None:
    """… matches any text."""
    result = run_shell(f'cd "$1" && {command}', str(ROOT), COLUMNS="80", GITHUB_ACTIONS="")
    pattern = "(?s:.*)".join(re.escape(part) for part in expected.split("…\n"))
    assert re.fullmatch(pattern, result.out), result.out + result.err


def test_spec_on_the_page_has_no_diagnostics_because_of_its_suppression() -> None:
    (spec,) = re.findall(r"^```yaml\n((?s:.*?))^```$", PAGE, re.MULTILINE)
    assert diagnose(spec) == ()
    assert [fault.code for fault in diagnose(re.sub("#.*", "", spec))] == ["MT501"]


def test_page_has_a_row_for_each_format() -> None:
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", PAGE, re.MULTILINE)) == FORMATS


def test_flags_and_variables_on_the_page_exist() -> None:
    help = run_shell("memtopo validate --help").out
    named = set(re.findall(r"MEMTOPO_[A-Z]+", PAGE)) | set(re.findall(r"`(--[a-z]+)", PAGE))
    assert {word for word in named if word not in help} == set()
