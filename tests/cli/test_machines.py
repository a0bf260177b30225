"""`machines` shows the machines of memtopo; `probe -o` writes what `--machine` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo.machine import shipped
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART, ROOT, run_memtopo


def shipped_text(name: str) -> str:
    return (ROOT / "memtopo" / "machines" / f"{name}.json").read_text()


def test_machines_lists_each_shipped_machine_in_a_line(run_inline: InlineRunner) -> None:
    """A line has the GPUs and the date of the record."""
    result = run_inline("machines", COLUMNS="80")
    assert (result.status, result.err) == (0, "")
    _, *lines = result.out.splitlines()
    assert [line.split()[0] for line in lines] == shipped()
    assert all("NVIDIA" in line and "20" in line for line in lines)
    assert list(run_inline("machines", "--json").document) == shipped()


@pytest.mark.parametrize("name", shipped())
def test_machines_with_a_name_shows_its_record(run_inline: InlineRunner, name: str) -> None:
    """With --json it is the file itself."""
    result = run_inline("machines", name)
    assert result.out.startswith(f"machines  {name}: ")
    assert "recorded: 20" in result.out
    assert "simulated" not in result.out
    assert run_inline("machines", name, "--json").out == shipped_text(name)


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("width", [60, 80])
def test_machines_fit_the_width_of_the_terminal(run_inline: InlineRunner, name: str, width: int) -> None:
    assert run_inline("machines", name, COLUMNS=str(width)).widest <= width
    assert run_inline("machines", COLUMNS=str(width)).widest <= width
    assert run_inline("probe", "--machine", name, COLUMNS=str(width)).widest <= width


@pytest.mark.parametrize("name", shipped())
def test_probe_of_a_simulated_machine_equals_its_record(run_inline: InlineRunner, tmp_path: Path, name: str) -> None:
    """This holds for the file and for stdout."""
    file = tmp_path / "again.json"
    result = run_inline("probe", "--machine", name, "-o", file)
    assert (result.status, result.err) == (0, f"memtopo: saved to {file}\n")
    assert result.out.startswith(f"probe  {name} (simulated): ")
    assert file.read_text() == shipped_text(name)
    assert run_inline("probe", "--machine", name, "--json").document["machine"] == json.loads(shipped_text(name))
    assert run_inline("machines", file, "--json").out == shipped_text(name)
    assert run_inline("apply", QUICKSTART, "--machine", file).status == (1 if name == "h100x1" else 0)


@pytest.mark.parametrize("identify", [False, True])
def test_a_record_has_identities_on_request_alone(run_inline: InlineRunner, tmp_path: Path, identify: bool) -> None:
    machine = json.loads(shipped_text("h100x1"))
    given = machine["devices"][0]["uuid"] = "GPU-12345678-1111-2222-3333-444455556666"
    file, saved = tmp_path / "ours.json", tmp_path / "saved.json"
    file.write_text(json.dumps(machine))
    done = run_inline("probe", "-m", file, "--json", "-o", saved, *["--identify"] * identify).document
    assert done["machine"] == json.loads(saved.read_text())
    assert (given in saved.read_text()) == identify


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("/nowhere/x.json", "no such file or directory"),
        ("/", "is a directory"),
        ("", "no such file or directory"),
        ("/dev/full", "no space left on device"),
    ],
)
def test_an_unwritable_record_exits_with_4_and_leaves_nothing(
    run_inline: InlineRunner, output: str, reason: str
) -> None:
    result = run_inline("probe", "--machine", "h200x2", "-o", output)
    assert (result.status, result.out) == (4, "")
    assert result.err == f"memtopo: error: {output!r} cannot be written: {reason}\n"


def test_probe_without_a_gpu_exits_with_3_and_records_nothing() -> None:
    result = run_memtopo("probe", "-o", "/nowhere/x.json", CUDA_VISIBLE_DEVICES="")
    assert (result.status, result.out) == (3, "")
    assert "--machine h200x2" in result.err


def test_probe_json_has_machine_times_causes_and_notes(run_inline: InlineRunner) -> None:
    found = run_inline("probe", "-m", "h200x2", "--json").document
    assert list(found) == [
        *("memtopo_probe", "name", "simulated", "machine", "why_not"),
        *("against", "notes", "left", "seconds"),
    ]
    assert (found["name"], found["simulated"], found["against"]) == ("h200x2", True, None)
    assert {cause["what"] for cause in found["why_not"]} == {"fabric", "fd+fabric"}
    assert found["seconds"]["total"] > max(trial["seconds"] for trial in found["seconds"]["trials"]) > 0
    assert run_inline("probe", "-m", "h200x2", "--format", "json").document["machine"] == found["machine"]


def test_probe_markdown_is_a_page(run_inline: InlineRunner) -> None:
    result = run_inline("probe", "-m", "h200x4", "--format", "markdown")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("## h200x4 (simulated): 4 × NVIDIA H200\n")
    assert "| --- |" in result.out


@pytest.mark.parametrize(
    ("machine", "record", "status", "reason"),
    [
        ("h200x2", "h200x2", 0, "nothing differs"),
        ("h200x4", "h200x2", 0, "the record still fits"),
        ("h200x2", "h200x4", 7, "2 differences may make a valid spec fail here"),
        ("h200x2", "h100x1", 7, "may make a valid spec fail here"),
        ("h200x2", "h9000", 3, ""),
        ("h200x2", "nowhere.json", 3, ""),
    ],
)
def test_probe_against_a_record_reports_differences(
    run_inline: InlineRunner, machine: str, record: str, status: int, reason: str
) -> None:
    """It exits with 7 if a spec that is valid on the record may fail here."""
    result = run_inline("probe", "-m", machine, "--against", record)
    assert result.status == status
    assert reason in result.out
    if status != 3:
        assert run_inline("probe", "-m", machine, "--against", record, "--json").document["against"]["fits"] == (
            not status
        )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--format", "sarif"], "there is no format 'sarif' of a probe"),
        (["--format", "markdown", "--json"], "two formats for one output"),
    ],
)
def test_an_unknown_format_of_probe_is_rejected_before_any_trial(
    run_inline: InlineRunner, arguments: list[str], reason: str
) -> None:
    result = run_inline("probe", "-m", "h200x2", *arguments)
    assert result.status == 2
    assert reason in result.err
