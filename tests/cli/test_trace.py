"""`memtopo apply --trace` and `memtopo trace`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from memtopo.output import schemas
from tests.cli.conftest import InlineRunner
from tests.helpers.specs import ROOT

QUICKSTART = ROOT / "specs" / "quickstart.yaml"
HAND_OVER = ROOT / "specs" / "hand-over.yaml"
M = ("--machine", "h200x4")


def test_a_traced_run_is_summarized_by_function(run_inline: InlineRunner, tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    assert run_inline("apply", QUICKSTART, *M, "--trace", file).status == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    result = run_inline("trace", file)
    assert result.status == 0
    assert result.out.startswith("trace  quickstart  on h200x4 (simulated)\n")
    rows = {words[0]: words for line in result.out.splitlines() if (words := line.split())[:1] and "cu" in words[0]}
    assert int(rows["cuMemCreate"][1]) == sum(line.get("call") == "cuMemCreate" for line in lines) == 18
    assert "note: the times are those of the simulator" in result.out
    document = run_inline("trace", file, "--json").document
    assert document["memtopo_trace"] == 1
    assert not list(Draft202012Validator(schemas.schema("trace")).iter_errors(document))
    assert document["calls"] == len(lines) - 1
    assert document["failed"] == []


def test_several_processes_have_a_file_each_in_a_folder(run_inline: InlineRunner, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    assert run_inline("apply", HAND_OVER, *M, "--trace", folder, "--check", "none").status == 0
    assert sorted(file.name for file in folder.iterdir()) == ["decode.jsonl", "prefill.jsonl"]
    found = run_inline("trace", folder).out
    assert "cuMemImportFromShareableHandle" in found
    whole = run_inline("trace", folder, "--json").document
    parts = [run_inline("trace", file, "--json").document for file in folder.iterdir()]
    assert whole["calls"] == sum(part["calls"] for part in parts)


def test_a_file_that_is_no_trace_is_refused(run_inline: InlineRunner, tmp_path: Path) -> None:
    for path, words in ((QUICKSTART, "is no trace"), (tmp_path / "none", "cannot be read"), (tmp_path, "no trace")):
        refused = run_inline("trace", path)
        assert refused.status == 2
        assert words in refused.err


def test_a_trace_that_cannot_be_written_fails_before_anything_is_built(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    refused = run_inline("apply", QUICKSTART, *M, "--trace", tmp_path / "none" / "calls.jsonl")
    assert refused.status == 4
    assert "cannot be written" in refused.err
    assert refused.out == ""


@pytest.mark.parametrize("spec", [QUICKSTART, HAND_OVER])
@pytest.mark.parametrize("make", ["text", "pipe", "link"])
def test_a_trace_replaces_no_other_file(run_inline: InlineRunner, tmp_path: Path, make: str, spec: Path) -> None:
    """Neither the file, nor one of a process in a folder, nor the target of a link; and a pipe is not waited for."""
    folder, kept = tmp_path / "calls", tmp_path / "kept"
    folder.mkdir()
    kept.write_text("mine\n")
    file = folder / "decode.jsonl"
    match make:
        case "text":
            file.write_text("mine\n")
        case "pipe":
            os.mkfifo(file)
        case _:
            file.symlink_to(kept)
    refused = run_inline("apply", spec, *M, "--trace", file if spec is QUICKSTART else folder)
    assert (refused.status, refused.out) == (2, "")
    assert "decode.jsonl' exists, and is no trace" in refused.err
    assert kept.read_text() == "mine\n"
    assert make != "text" or file.read_text() == "mine\n"


def test_a_trace_replaces_an_empty_file_and_a_trace(run_inline: InlineRunner, tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.touch()
    for _ in range(2):
        assert run_inline("apply", QUICKSTART, *M, "--trace", file, "--check", "none").status == 0
    assert run_inline("trace", file).status == 0


def test_a_link_in_a_folder_of_traces_is_not_followed(run_inline: InlineRunner, tmp_path: Path) -> None:
    """Also to a trace, which is of another run."""
    kept, folder = tmp_path / "calls.jsonl", tmp_path / "calls"
    assert run_inline("apply", QUICKSTART, *M, "--trace", kept, "--check", "none").status == 0
    before = kept.read_text()
    folder.mkdir()
    (folder / "decode.jsonl").symlink_to(kept)
    assert run_inline("apply", HAND_OVER, *M, "--trace", folder, "--check", "none").status == 2
    assert kept.read_text() == before
