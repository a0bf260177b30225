"""Names and texts made by someone who means harm cannot get out of their place in any form."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from memtopo import machine
from memtopo.rules.files import Checked, check, collect
from tests.ci import forms
from tests.ci.conftest import GOOD
from tests.ci.forms import text
from tests.helpers.command_line import run_memtopo

EVIL = [
    "%0A::error::x",
    "%25%0D%0A",
    "::error file=x::y",
    "##[error]x ##[add-mask]y",
    "]]><!--",
    "<script>alert(1)<",
    "&lt;&#60;%3C",
    "a|b|c",
    "a\\|b\\",
    "``` ```` `",
    "[click](https:evil.example)",
    "![x](javascript:y)",
    "**_~~#- @everyone #1",
    "\x1b[31m\x07\x9b2J",
    "\u202egnp.exe",
    "a\nb\r\nc\td",
    "\u2028\u2029\ufeff\ufffe",
    "\udcff\udcfe",
    "{0} {{1}} %s $x ${{ x }}",
    "世😀é",
    "'\"\\' onload='x",
    "-->",
    ",line=1,col=2",
    ":: ::",
    " leading and trailing ",
]


@pytest.fixture(params=EVIL, ids=range(len(EVIL)))
def evil(request: pytest.FixtureRequest) -> str:
    """A text that means harm."""
    return str(request.param)


@pytest.fixture
def harmed(folder: Path, evil: str) -> Checked:
    """A check of files of which one has such a name, and the others such texts."""
    (folder / f"{evil}.yaml").write_text(GOOD.replace("gpu0:", "gpu9:"))
    quoted = "".join(f"\\U{ord(char):08x}" if not char.isascii() or not char.isprintable() else char for char in evil)
    quoted = quoted.replace("\\", "\\\\").replace("\\\\U", "\\U").replace('"', '\\"')
    plain = evil.translate({ord(char): None for char in "\x1b\x07\x9b\r\n\u2028\u2029\ufeff\ufffe\udcff\udcfe"})
    (folder / "key.yaml").write_text(f'{GOOD}"{quoted}": 1 # {plain}\n')
    (folder / "value.yaml").write_text(GOOD.replace("location: gpu0", f'location: "{quoted}"') + f"# {plain}\n")
    machines = {evil: machine.load("h100x1"), "other": machine.load("h200x2")}
    return check(collect(["."]), machines)


def test_hostile_names_are_uris_in_sarif(harmed: Checked, evil: str) -> None:
    """No message contains a link or a control character."""
    run = forms.sarif(text("sarif", harmed))
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]}
    assert {unquote_to_bytes(uri) for uri in uris} <= set(os.listdir(b"."))
    assert len(uris) == 3
    for result in run["results"]:
        assert "](" not in result["message"]["text"]
        assert result["message"]["text"].replace("\n", "").isprintable()


def test_hostile_texts_stay_in_their_element_in_junit(harmed: Checked, evil: str) -> None:
    """There is a case for each file and machine."""
    found = forms.junit(text("junit", harmed))
    assert [suite.tests for suite in found] == [3, 3]
    assert all(len(case.result) <= 1 for suite in found for case in suite)


def test_hostile_texts_give_one_annotation_per_line_in_github(harmed: Checked) -> None:
    output = text("github", harmed)
    found = forms.github(output)
    assert len(found) == len(output.splitlines()) == len(forms.diagnostics(text("json", harmed))["diagnostics"])
    assert {command.name for command in found} <= {"error", "warning"}
    assert len({command.properties["file"] for command in found}) == 3
    assert all(
        command.properties.keys() <= {"file", "line", "endLine", "col", "endColumn", "title"} for command in found
    )
    assert output.replace("\n", "").isprintable()


def test_hostile_texts_are_one_printable_line_in_gitlab(harmed: Checked, evil: str) -> None:
    """The path is that of the file."""
    entries = forms.gitlab(text("gitlab", harmed))
    assert {os.fsencode(entry["location"]["path"]) for entry in entries} <= set(os.listdir(b"."))
    assert all(entry["description"].isprintable() for entry in entries)


def test_hostile_texts_add_no_element_to_markdown(harmed: Checked) -> None:
    """There are one table with a cell for each file and machine, and one fence."""
    rows, fences = forms.markdown(text("markdown", harmed))
    assert [len(row) for row in rows] == [3, 3, 3, 3]
    assert len(fences) == 1


def test_hostile_texts_are_printable_in_text(harmed: Checked) -> None:
    for form in ("text", "concise"):
        assert text(form, harmed).replace("\n", "").isprintable()
    assert text("json", harmed).isascii()


def test_hostile_text_output_contains_no_github_command(harmed: Checked, evil: str, folder: Path) -> None:
    said = run_memtopo("validate", ".", "-m", "h100x1", GITHUB_ACTIONS="true", PYTHONUTF8="1")
    found = forms.github(said.out)
    assert found
    assert {command.name for command in found} == {"error"}
    assert all(command.properties["title"].startswith("MT") for command in found)
