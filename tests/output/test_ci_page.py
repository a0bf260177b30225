"""docs/ci.md: its tables are whole, and what they name exists."""

from __future__ import annotations

import re

from memtopo.output.formats import FORMATS
from tests.helpers.command_line import run_shell
from tests.helpers.specs import ROOT, diagnose

PAGE = (ROOT / "docs" / "ci.md").read_text()


def test_spec_on_the_page_has_no_diagnostics_because_of_its_suppression() -> None:
    (spec,) = re.findall(r"^```yaml\n((?s:.*?))^```$", PAGE, re.MULTILINE)
    assert diagnose(spec) == ()
    assert [fault.code for fault in diagnose(re.sub("#.*", "", spec))] == ["MT501"]


def test_page_has_a_row_for_each_format() -> None:
    _, _, section = PAGE.partition("\n## Formats\n")
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", section, re.MULTILINE)) == FORMATS


def test_flags_and_variables_on_the_page_exist() -> None:
    help = run_shell("memtopo validate --help").out
    named = set(re.findall(r"MEMTOPO_[A-Z]+", PAGE)) | set(re.findall(r"`(--[a-z]+)", PAGE))
    assert {word for word in named if word not in help} == set()
