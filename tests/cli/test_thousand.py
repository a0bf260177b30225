from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import ci_forms as forms
from tests.helpers.checked_specs import BAD, GOOD
from tests.helpers.command_line import CommandResult, run_memtopo

KINDS = ("good", "bad", "latin", "utf16", "gone", "loop", "null", "empty", "device", "conflict")
TEXTS = {
    "good": GOOD.encode(),
    "bad": BAD.encode(),
    "latin": GOOD.encode() + "# größer\n".encode("latin-1"),
    "utf16": GOOD.encode("utf-16"),
    "null": GOOD.encode() + b"\0",
    "empty": b"",
    "conflict": b"<<<<<<< a\n" + GOOD.encode(),
}
CODES = {
    "bad": {"MT301", "MT501"},
    "latin": {"MT003"},
    "utf16": {"MT003"},
    "gone": {"MT001"},
    "loop": {"MT001"},
    "null": {"MT004"},
    "empty": {"MT010"},
    "device": {"MT001"},
    "conflict": {"MT005"},
}


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand files in a tree, of which a tenth is right."""
    top = tmp_path_factory.mktemp("thousand")
    for number in range(1000):
        kind = KINDS[number % len(KINDS)]
        path = top / str(number % 7) / "deep" / f"{number:04}-{kind}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind in TEXTS:
            path.write_bytes(TEXTS[kind])
        else:
            path.symlink_to({"gone": "nowhere", "loop": path.name, "device": "/dev/null"}[kind])
    return top


@pytest.fixture(scope="module")
def said(thousand: Path) -> CommandResult:
    """Validate them with a report in every format for programs."""
    reports = [f"--report={form}={thousand}/out.{form}" for form in ("sarif", "junit", "gitlab", "github", "concise")]
    return run_memtopo("validate", thousand / "*/**/*.yaml", "-m", "h200x2", "--json", *reports)


def kind(file: str) -> str:
    return Path(file).stem.split("-", 1)[1]


def test_each_of_many_files_has_its_own_result(said: CommandResult) -> None:
    """Valid files are ok whatever the others are."""
    found = forms.diagnostics(said.out)
    assert said.status == 1
    assert len({result["file"] for result in found["results"]}) == len(found["results"]) == 1000
    assert all(result["ok"] == (kind(result["file"]) == "good") for result in found["results"])


def test_each_invalid_file_has_its_own_diagnostics(said: CommandResult) -> None:
    faults: dict[str, set[str]] = {}
    for fault in forms.diagnostics(said.out)["diagnostics"]:
        faults.setdefault(fault["file"], set()).add(fault["code"])
    assert len(faults) == 900
    assert all(codes == CODES[kind(file)] for file, codes in faults.items())


def test_every_report_names_all_invalid_files(said: CommandResult, thousand: Path) -> None:
    """Each report fits its format."""
    del said
    files = {form: (thousand / f"out.{form}").read_text() for form in ("sarif", "junit", "gitlab", "github", "concise")}
    uris = {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in forms.sarif(files["sarif"])["results"]
    }
    suites = forms.junit(files["junit"])
    assert (len(uris), suites.tests, suites.failures) == (900, 1000, 900)
    assert len({entry["location"]["path"] for entry in forms.gitlab(files["gitlab"])}) == 900
    assert len({command.properties["file"] for command in forms.github(files["github"])}) == 900
    assert len(files["concise"].splitlines()) == 1000


def test_a_folder_and_a_pattern_select_the_same_files(thousand: Path, said: CommandResult) -> None:
    found = forms.diagnostics(run_memtopo("validate", thousand, "-m", "h200x2", "--json").out)
    names = {result["file"] for result in found["results"]}
    assert names == {result["file"] for result in forms.diagnostics(said.out)["results"]}
