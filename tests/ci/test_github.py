from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable
from memtopo.diagnostics.codes import CODES
from memtopo.output import github as rendering
from memtopo.rules.files import check, collect
from tests.ci.conftest import BAD, GOOD, TWO_GPUS, WARNED, Checking
from tests.ci.forms import github, text
from tests.ci.runner import commands, marked
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT


def test_a_mark(checked: Checking) -> None:
    """A fault is one line, which the runner reads as a mark with its place, title, message, notes and help"""
    first, second = github(text("github", checked({"specs/bad.yaml": BAD})))
    assert (first.name, second.name) == ("error", "warning")
    assert first.properties == {
        "file": "specs/bad.yaml",
        "line": "4",
        "endLine": "4",
        "col": "31",
        "endColumn": "35",
        "title": f"MT301: {CODES['MT301'].title}",
    }
    assert first.data.splitlines()[0] == "chunk 'hot': 3MiB is no multiple of 2MiB (1 MiB over)"
    assert first.data.splitlines()[-1] == "help: write 2MiB or 4MiB, or 'round: up'"


def test_errors_come_first(checked: Checking) -> None:
    """Only ten of a kind are shown, so that no warning stands before an error, whichever files they are in"""
    names = [command.name for command in github(text("github", checked({"a.yaml": WARNED, "b.yaml": BAD})))]
    assert names == ["error", "warning", "warning"]


def test_several_lines(checked: Checking) -> None:
    """A mark over several lines has no columns"""
    long = "memtopo: 1\nname: x\nranges:\n  - a\n  - b\n"
    commands = github(text("github", checked({"x.yaml": long})))
    assert any(int(each.properties["endLine"]) > int(each.properties["line"]) for each in commands)
    assert all(marked(each) for each in commands)


def test_every_fault(folder: Path) -> None:
    """The runner accepts every mark of every wrong example"""
    output = text("github", check(collect([str(ROOT / "tests" / "bad")]), {"two": invented(2)}))
    found = github(output)
    assert len(found) == len(output.splitlines()) > 40
    assert all(marked(each) for each in found)


def test_a_file_that_is_not_there(folder: Path) -> None:
    """What is wrong with a whole file is a mark without a line"""
    (found,) = github(text("github", check(collect(["nowhere.yaml"]), {"one": invented(1)})))
    assert found.properties["file"] == "nowhere.yaml"
    assert "line" not in found.properties


def test_machines(checked: Checking) -> None:
    """A fault of one machine says so"""
    (found,) = github(text("github", checked({"x.yaml": TWO_GPUS}, "h100x1", "h200x2")))
    assert "note: only on h100x1" in found.data


def test_nothing_to_mark(checked: Checking) -> None:
    """Where nothing is wrong there is no command"""
    assert text("github", checked({"x.yaml": GOOD})) == ""


def test_a_check_that_could_not_be_made() -> None:
    """Where nothing could be checked there is one error"""
    (found,) = github("\n".join(rendering.failure(Unavailable("no: GPU, 100%", hint="a"))))
    assert (found.name, found.data) == ("error", "no: GPU, 100%\nhint: a")


@pytest.mark.parametrize("line", ["::error::x", "  ::add-mask::x", "1 | ##[error]x", "::endgroup::", "::other::"])
def test_quoted_text(line: str) -> None:
    """The runner takes no command out of quoted text, and takes those after it"""
    if "other" not in line:
        assert commands(line)
    assert commands("\n".join([*rendering.quoted([line, line], "t0ken"), "::warning::y"])) == commands("::warning::y")
