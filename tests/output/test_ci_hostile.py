"""Hostile names and texts stay within their quotation in every format."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from memtopo import machine
from memtopo.rules.files import Checked, collect
from tests.cli.conftest import InlineRunner
from tests.helpers import ci_forms as forms
from tests.helpers.checked_specs import GOOD, check
from tests.helpers.ci_forms import text
from tests.helpers.ci_runner import azure_commands, commands

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


@pytest.fixture(scope="module", params=EVIL, ids=range(len(EVIL)))
def evil(request: pytest.FixtureRequest) -> str:
    """A text that means harm."""
    return str(request.param)


@pytest.fixture(scope="module")
def evil_folder(evil: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of which one has such a name, and the others such texts."""
    folder = tmp_path_factory.mktemp("evil")
    (folder / f"{evil}.yaml").write_text(GOOD.replace("gpu0:", "gpu9:"))
    quoted = "".join(f"\\U{ord(char):08x}" if not char.isascii() or not char.isprintable() else char for char in evil)
    quoted = quoted.replace("\\", "\\\\").replace("\\\\U", "\\U").replace('"', '\\"')
    plain = evil.translate({ord(char): None for char in "\x1b\x07\x9b\r\n\u2028\u2029\ufeff\ufffe\udcff\udcfe"})
    (folder / "key.yaml").write_text(f'{GOOD}"{quoted}": 1 # {plain}\n')
    (folder / "value.yaml").write_text(GOOD.replace("location: gpu0", f'location: "{quoted}"') + f"# {plain}\n")
    return folder


@pytest.fixture(scope="module")
def checked_once(evil: str, evil_folder: Path) -> Checked:
    """A check of these files."""
    machines = {evil: machine.load("h100x1"), "other": machine.load("h200x2")}
    with contextlib.chdir(evil_folder):
        return check(collect(["."]), machines)


@pytest.fixture
def harmed(checked_once: Checked, evil_folder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """The check, with their folder as the current one."""
    monkeypatch.chdir(evil_folder)
    return checked_once


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


def test_hostile_text_output_contains_no_github_command(
    harmed: Checked, run_inline: InlineRunner, folder: Path
) -> None:
    said = run_inline("validate", ".", "-m", "h100x1", GITHUB_ACTIONS="true")
    found = forms.github(said.out)
    assert found
    assert {command.name for command in found} == {"error"}
    assert all(command.properties["title"].startswith("MT") for command in found)


COMMANDS = ["::add-mask::x", "##[set-output name=a]b ##vso[task.setvariable variable=a]b \x1b[31m"]
OUTPUTS = [
    "validate", "validate --format text", "validate --format concise", "validate --format json",
    "validate --format markdown", "validate --format junit", "validate --format sarif", "validate --format gitlab",
    "plan", "plan --json", "plan -o", "apply", "apply --json", "apply --hold --for 1ms --socket",
    "draw", "draw --format html", "draw --format svg",
    "draw --format dot", "draw --format mermaid", "draw --json", "draw -o", "machines", "machines --json",
]  # fmt: skip
WRAPPED = ("validate", "plan", "apply", "draw", "machines")


@pytest.fixture(scope="module", params=COMMANDS)
def command_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name, specs, machine and GPUs are named as a command of a CI runner."""
    folder = tmp_path_factory.mktemp("commands") / f"a {request.param}"
    folder.mkdir()
    recorded = machine.load("h100x1")
    device = recorded.devices[0].model_copy(update={"name": request.param})
    (folder / f"{request.param}.json").write_text(machine.dump(recorded.model_copy(update={"devices": [device]})))
    unused = "chunks: {unused: {location: gpu0, size: 2MiB}, "
    (folder / f"{request.param}.yaml").write_text(GOOD.replace("chunks: {", unused) + f"# {request.param}\n")
    (folder / f"bad {request.param}.yaml").write_text(GOOD.replace("gpu0:", "gpu9:"))
    return folder


@pytest.mark.parametrize(
    "widths", [range(20, 90, 14), pytest.param(range(27, 90, 14), marks=pytest.mark.exhaustive(seconds=0.1))]
)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_contains_a_ci_command(
    output: str, widths: range, command_folder: Path, run_inline: InlineRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no width, since `::` is a command wherever a line wraps."""
    monkeypatch.chdir(command_folder.parent)
    name, word = command_folder.name, command_folder.name[2:]
    command, *options = output.split()
    options += [f"{name}/o {word}.svg"] if "-o" in options else []
    options += [word[:30]] if "--socket" in options else []
    specs = [f"{name}/{word}.yaml", f"{name}/bad {word}.yaml"]
    target = f"{name}/{word}.json"
    lines = [[target]] if command == "machines" else [[spec, "-m", target] for spec in specs]
    for columns in widths if output in WRAPPED else (80,):
        for arguments in lines:
            result = run_inline(command, *arguments, *options, COLUMNS=str(columns))
            said = result.out + result.err
            assert not said.isspace()
            assert (commands(said), azure_commands(said)) == ([], [])
            assert "\x1b" not in said
