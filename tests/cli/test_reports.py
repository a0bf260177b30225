"""`--report`: the page of a run or a probe is written, also where it failed, and does not change the exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from memtopo.cli.results import RunOutput
from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.run.apply import apply
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART, ROOT
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

M = "--machine=h200x2"
INVALID = "memtopo: 1\nname: bad\nranges: {kv: {size: 3MiB}}\nmap: {kv: [pge]}\n"
TOO_MUCH = """memtopo: 1
name: much
ranges: {r: {size: 400GiB}}
chunks: {c: {location: gpu0, size: 100GiB, count: 4}}
map: {r: [c]}
access: {r: {gpu0: rw}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.html"


@pytest.mark.parametrize("suffix", [".html", ".HTM"])
def test_the_report_of_a_run_is_a_page_beside_the_text(run_inline: InlineRunner, file: Path, suffix: str) -> None:
    file = file.with_suffix(suffix)
    result = run_inline("apply", QUICKSTART, M, "--report", file)
    assert result.status == 0
    assert result.err == f"memtopo: report written to {file}\n"
    assert "ok: built, checked and taken down" in result.out
    page = file.read_text()
    for words in ("ok: built, checked and taken down", "<svg", 'class="track"', "Checked", "cuMemMap", "Taken down"):
        assert words in page


def test_a_report_in_a_json_file_is_what_json_prints(run_inline: InlineRunner, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    result = run_inline("apply", QUICKSTART, M, "--json", "--report", file)
    assert json.loads(file.read_text()) == result.document


@pytest.mark.parametrize(
    ("text", "arguments", "status", "words"),
    [
        (INVALID, [M], 1, "MT302"),
        (TOO_MUCH, [M], 1, "error"),
        (INVALID, ["--machine=nowhere"], 3, "machine &#x27;nowhere&#x27; is not known"),
        (INVALID, [M, "--chek=fast"], 2, "no such option"),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_failure_has_a_report_and_its_own_exit_status(
    run_inline: InlineRunner, file: Path, text: str, arguments: list[str], status: int, words: str, by_variable: bool
) -> None:
    spec = file.with_name("spec.yaml")
    spec.write_text(text)
    variables = {"MEMTOPO_APPLY_REPORT": str(file)} if by_variable else {}
    flag = [] if by_variable else [f"--report={file.with_name('earlier.json')}", f"--report={file}"]
    assert run_inline("apply", spec, *arguments, *flag, **variables).status == status
    assert words in file.read_text()


@pytest.mark.parametrize("name", ["run.yaml", "run", "", "missing/run.html"])
@pytest.mark.parametrize("command", [["apply", QUICKSTART], ["probe"]])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_done(
    run_inline: InlineRunner, tmp_path: Path, command: list[str], name: str
) -> None:
    result = run_inline(*command, M, "--report", str(tmp_path / name) if name else "")
    assert (result.status, result.out) == (2, "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", ['{"memtopo": 1}', '{"memtopo_plan": 1}', "<!doctype html>\n<p>mine</p>"])
@pytest.mark.parametrize("name", ["run.html", "run.json"])
def test_a_report_replaces_no_other_file(run_inline: InlineRunner, tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    for spec in (file, QUICKSTART):
        refused = run_inline("apply", spec, M, "--report", file)
        assert refused.status == 2
        assert refused.err.count("exists, and is no report") == 1
    assert file.read_text() == content


@pytest.mark.parametrize("name", ["run.html", "run.json"])
@pytest.mark.parametrize("before", [["apply", QUICKSTART, M], ["probe", M], ["apply", "none.yaml", M], ["apply", "-x"]])
def test_a_report_replaces_any_report(run_inline: InlineRunner, tmp_path: Path, name: str, before: list[str]) -> None:
    file = tmp_path / name
    run_inline(*before, "--report", file)
    assert file.stat().st_size
    assert run_inline("apply", QUICKSTART, M, "--report", file).status == 0


def test_a_trace_and_a_report_are_two_files(run_inline: InlineRunner, tmp_path: Path) -> None:
    file, link = tmp_path / "run.json", tmp_path / "link.json"
    link.symlink_to(file)
    refused = run_inline("apply", QUICKSTART, M, "--report", link, "--trace", file)
    assert refused.status == 2
    assert "cannot be both" in refused.err


def test_a_report_that_is_lost_later_fails_a_run_that_succeeded(run_inline: InlineRunner, file: Path) -> None:
    file.mkdir()
    result = run_inline("apply", QUICKSTART, M, "--report", file)
    assert result.status == 4
    assert "ok: built" in result.out
    assert "cannot be written" in result.err


def test_a_report_that_is_lost_later_leaves_a_failed_run_its_own_exit_status(file: Path) -> None:
    file.mkdir()
    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        report = apply(
            run_request("buffers: {b: {location: gpu0, size: 2MiB}}", machine), Ledger(driver), stop=lambda: 15
        )
    assert RunOutput(str(file), None, as_json=True).show(report) == 143


def test_the_report_of_a_probe_is_a_page(run_inline: InlineRunner, file: Path) -> None:
    result = run_inline("probe", "--machine=h100x1", "--report", file)
    assert result.status == 0
    assert "Trials" in file.read_text()
    assert run_inline("probe", "--machine=nowhere", "--report", file).status == 3
    assert "is not known" in file.read_text()


def test_the_page_has_the_calls_of_the_trace_if_there_is_one(run_inline: InlineRunner, file: Path) -> None:
    trace = file.with_name("trace.jsonl")
    assert run_inline("apply", QUICKSTART, M, "--trace", trace, "--report", file).status == 0
    assert "Driver calls</h2>" in file.read_text()
    assert run_inline("apply", QUICKSTART, M, "--report", file).status == 0
    assert "Driver calls</h2>" not in file.read_text()


def test_alike_processes_are_one_in_plans_and_reports_unless_all_are_asked_for(
    run_inline: InlineRunner, file: Path
) -> None:
    """Rows, pictures and outcomes; JSON has every process."""
    spec = ROOT / "specs" / "weights.yaml"
    for command in (("plan",), ("apply", "--report", file)):
        folded, every = run_inline(*command, spec, M).out, run_inline(*command, spec, M, "--all").out
        assert "\nreader.0 … reader.1, each on its GPU: gpu0, gpu1\n" in folded
        assert "── reader.0 … 1  2 alike, reader.0 is drawn ──" in folded
        assert ["\nreader.0\n" in every, "\nreader.1\n" in every, "── reader.1 ──" in every] == [True] * 3
        if command[0] == "apply":
            assert "reader.0 … reader.1  2 processes  ok" in folded
            assert "reader.1" in file.read_text().partition("addresses")[0]
    run_inline("apply", spec, M, "--report", file)
    assert "2 processes" in file.read_text()
    assert len(run_inline("apply", spec, M, "--json").document["processes"]) == 3
