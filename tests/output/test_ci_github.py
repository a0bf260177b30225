from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable
from memtopo.common.text import output_line
from memtopo.diagnostics.explanations import explanation
from memtopo.output import formats
from memtopo.rules.files import collect
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking, check
from tests.helpers.ci_forms import github, text
from tests.helpers.ci_runner import commands, marked
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT


def test_a_diagnostic_is_one_annotation_in_one_line(checked: Checking) -> None:
    """The runner reads its position, title, message, notes and help."""
    first, second = github(text("github", checked({"specs/bad.yaml": BAD})))
    assert (first.name, second.name) == ("error", "warning")
    assert first.properties == {
        "file": "specs/bad.yaml",
        "line": "4",
        "endLine": "4",
        "col": "31",
        "endColumn": "35",
        "title": f"MT301: {explanation('MT301').title}",
    }
    assert first.data.splitlines()[0] == "chunk 'hot': 3MiB is not a multiple of 2MiB (1 MiB over)"
    assert first.data.splitlines()[-1] == "help: write 2MiB or 4MiB, or 'round: up'"


def test_annotations_of_errors_precede_warnings(checked: Checking) -> None:
    """GitHub shows only ten of each kind, so errors of all files come first."""
    names = [command.name for command in github(text("github", checked({"a.yaml": WARNED, "b.yaml": BAD})))]
    assert names == ["error", "warning", "warning"]


def test_an_annotation_of_several_lines_has_no_columns(checked: Checking) -> None:
    long = "memtopo: 1\nname: x\nranges:\n  - a\n  - b\n"
    commands = github(text("github", checked({"x.yaml": long})))
    assert any(int(each.properties["endLine"]) > int(each.properties["line"]) for each in commands)
    assert all(marked(each) for each in commands)


def test_github_annotations_of_all_bad_specs_are_accepted(folder: Path) -> None:
    output = text("github", check(collect([str(ROOT / "tests" / "bad")]), {"two": invented(2)}))
    found = github(output)
    assert len(found) == len(output.splitlines()) > 40
    assert all(marked(each) for each in found)


def test_an_annotation_of_a_whole_file_has_no_line(folder: Path) -> None:
    (found,) = github(text("github", check(collect(["nowhere.yaml"]), {"one": invented(1)})))
    assert found.properties["file"] == "nowhere.yaml"
    assert "line" not in found.properties


def test_github_annotations_name_the_machine_if_not_all_share_them(checked: Checking) -> None:
    (found,) = github(text("github", checked({"x.yaml": TWO_GPUS}, "h100x1", "h200x2")))
    assert "note: only on h100x1" in found.data


def test_github_output_is_empty_without_diagnostics(checked: Checking) -> None:
    assert text("github", checked({"x.yaml": GOOD})) == ""


def test_a_failed_check_is_one_github_error() -> None:
    (found,) = github("\n".join(formats.failure("github", Unavailable("no: GPU, 100%", hint="a"))))
    assert (found.name, found.data) == ("error", "no: GPU, 100%\nhint: a")


@pytest.mark.parametrize(
    "line", ["::error::x", "  ::add-mask::x", "1 | ##[error]x", "::endgroup::", "\x1b[1m::error::x", "###[error]x"]
)
def test_escaped_lines_contain_no_command(line: str) -> None:
    """Nor does a line that is escaped again."""
    once = output_line(line, styled=True)
    assert commands(once) == commands(once.replace("\x1b[1m", "")) == []
    assert output_line(once, styled=True) == once


@pytest.mark.parametrize("line", ["a::b", "0x20: ::1", "## heading", "# [x]", ":", "a ## b [c]"])
def test_lines_without_a_command_are_not_escaped(line: str) -> None:
    assert output_line(line) == line
