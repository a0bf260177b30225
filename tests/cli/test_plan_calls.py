"""`memtopo plan` names the driver calls, and lists them with `--calls`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.helpers.specs import ROOT

QUICKSTART = ROOT / "specs" / "quickstart.yaml"
HAND_OVER = ROOT / "specs" / "hand-over.yaml"
M = ("--machine", "h200x4")


def test_a_plan_names_the_call_of_each_row_with_its_flags(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", QUICKSTART, *M).out.splitlines()
    at = next(index for index, line in enumerate(lines) if "hot " in line)
    assert lines[at + 1].split() == ["cuMemCreate", "requestedHandleTypes=POSIX_FILE_DESCRIPTOR"]
    assert any(line.split() == ["cuMemAddressReserve", "alignment=2MiB"] for line in lines)


def test_a_narrow_terminal_has_the_calls_below_the_table(run_inline: InlineRunner) -> None:
    found = run_inline("plan", QUICKSTART, *M, COLUMNS="46").out
    assert "cuMemCreate" in found
    assert max(map(len, found.splitlines())) <= 46


def test_calls_are_listed_by_phase_with_their_arguments(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", QUICKSTART, *M, "--calls").out.splitlines()
    assert lines[0] == "calls  quickstart  on h200x4 (simulated)"
    assert "    cuMemAddressReserve(&kv, size=96MiB, alignment=2MiB, address=0, flags=0)" in lines
    assert "    cuMemMap(kv+32MiB, size=32MiB, offset=0, cold, flags=0)" in lines
    assert "    cuMemSetAccess(kv, size=96MiB, {gpu0 rw, gpu1 r})" in lines
    assert lines.index("  create") < lines.index("  take down")
    assert sum("cuMemCreate(" in line for line in lines) == sum("cuMemRelease(" in line for line in lines) == 18


def test_calls_of_several_processes_have_a_heading_each_and_their_exchanges(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", HAND_OVER, *M, "--calls").out.splitlines()
    assert lines.index("prefill") < lines.index("decode")
    assert "    /* send pages.31 to decode */" in lines
    assert "    cuMemImportFromShareableHandle(&page.31, prefill/pages.31, kind=POSIX_FILE_DESCRIPTOR)" in lines


def test_descriptors_of_holders_are_listed_without_a_number(run_inline: InlineRunner) -> None:
    lines = run_inline("plan", ROOT / "specs" / "vulkan-frame.yaml", *M, "--calls").out.splitlines()
    frame = "cuImportExternalMemory(&frame, fd=<from camera>, kind=opaque_fd, size=8MiB, dedicated=False)"
    assert f"    {frame}" in lines
    assert "    cuImportExternalSemaphore(&ready, fd=<from camera>, kind=timeline_fd)" in lines


def test_the_document_of_calls_has_sizes_in_bytes_and_names_for_handles(run_inline: InlineRunner) -> None:
    document = json.loads(run_inline("plan", QUICKSTART, *M, "--calls", "--json").out)
    (process,) = document["processes"]
    create = next(each for each in process["calls"] if each["function"] == "cuMemCreate")
    assert create["makes"] == "hot"
    assert create["arguments"]["size"] == 32 << 20
    assert create["arguments"]["properties"]["handles"] == ["fd"]
    release = [each for each in process["calls"] if each["function"] == "cuMemRelease"][-1]
    assert release["undo"]
    assert release["arguments"] == {"handle": "hot"}


@pytest.mark.parametrize(
    "options",
    [
        ("--calls", "--as", "c"),
        ("--calls", "-o", "calls.json"),
        ("--as", "c", "--json"),
        ("--summary", "--calls"),
        ("--summary", "--as", "c"),
    ],
    ids=" ".join,
)
def test_two_outputs_at_once_are_refused(run_inline: InlineRunner, options: tuple[str, ...]) -> None:
    assert run_inline("plan", QUICKSTART, *M, *options).status == 2


def test_calls_of_a_change_are_not_listed(run_inline: InlineRunner) -> None:
    refused = run_inline("plan", "cache", QUICKSTART, "--calls")
    assert refused.status == 2
    assert "--calls" in refused.err


def test_a_summary_has_no_steps_and_its_document_is_that_of_the_plan(run_inline: InlineRunner) -> None:
    shown = run_inline("plan", QUICKSTART, *M, "--summary").out
    assert "retain context" not in shown
    assert ["cuMemAddressReserve", "1", "0"] in [line.split() for line in shown.splitlines()]
    assert run_inline("plan", QUICKSTART, *M, MEMTOPO_PLAN_SUMMARY="1").out == shown
    whole = run_inline("plan", QUICKSTART, *M, "--json").out
    assert run_inline("plan", QUICKSTART, *M, "--summary", "--json").out == whole


def test_a_program_is_printed_or_saved(run_inline: InlineRunner, tmp_path: Path) -> None:
    printed = run_inline("plan", QUICKSTART, *M, "--as", "c")
    assert printed.status == 0
    assert "cuMemCreate(&chunk_page[i], 2 * MiB" in printed.out
    for _ in range(2):  # a file that memtopo wrote is replaced
        assert run_inline("plan", QUICKSTART, *M, "--as", "c", "-o", tmp_path / "quickstart.c").status == 0
    assert (tmp_path / "quickstart.c").read_text() == printed.out
    compile(run_inline("plan", QUICKSTART, *M, "--as", "cuda-python").out, "quickstart.py", "exec")


def test_programs_of_several_processes_go_into_a_folder(run_inline: InlineRunner, tmp_path: Path) -> None:
    refused = run_inline("plan", HAND_OVER, *M, "--as", "c")
    assert refused.status == 2
    assert "-o DIR" in refused.err
    assert run_inline("plan", HAND_OVER, *M, "--as", "c", "-o", tmp_path / "programs").status == 0
    assert sorted(file.name for file in (tmp_path / "programs").iterdir()) == ["decode.c", "prefill.c"]


def test_no_program_of_several_processes_is_saved_if_one_would_replace_another_file(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    for name in ("decode.c", "prefill.c"):
        file = tmp_path / name
        file.write_text("int main(void);\n")
        refused = run_inline("plan", HAND_OVER, *M, "--as", "c", "-o", tmp_path)
        assert (refused.status, f"'{file}' exists, and memtopo did not write it" in refused.err) == (2, True)
        assert ([*tmp_path.iterdir()], file.read_text()) == ([file], "int main(void);\n")
        file.unlink()


@pytest.mark.parametrize("folder", ["", "-"])
def test_programs_of_several_processes_need_the_name_of_a_folder(
    run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run_inline("plan", HAND_OVER, *M, "--as", "c", "-o", folder)
    assert refused.status == 2
    assert "-o DIR" in refused.err
    assert list(tmp_path.iterdir()) == []


def test_what_no_program_can_make_is_refused(run_inline: InlineRunner) -> None:
    refused = run_inline("plan", ROOT / "specs" / "vulkan-frame.yaml", *M, "--as", "c")
    assert refused.status == 4
    assert "'camera', a holder outside of the spec, whose handle a program of its calls cannot request" in refused.err
    assert refused.out == ""


def test_programs_of_several_nodes_are_refused(run_inline: InlineRunner, tmp_path: Path) -> None:
    spec = ROOT / "specs" / "nodes" / "tensor-parallel.yaml"
    assert run_inline("plan", spec, *M, "--calls").status == 0
    refused = run_inline("plan", spec, *M, "--as", "c", "-o", tmp_path)
    assert refused.status == 4
    assert "several nodes" in refused.err
    assert list(tmp_path.iterdir()) == []
