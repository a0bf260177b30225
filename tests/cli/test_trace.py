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


def test_results_of_the_kernels_of_a_full_check_are_in_a_trace(run_inline: InlineRunner, tmp_path: Path) -> None:
    spec, file = tmp_path / "small.yaml", tmp_path / "calls.jsonl"
    entries = (
        "{ranges: {r: {size: 2MiB}}, chunks: {c: {location: gpu0, size: 2MiB}}, map: {r: c}, access: {r: {gpu0: rw}}}"
    )
    spec.write_text(f"{{memtopo: 1, name: small, {entries[1:]}")
    assert run_inline("apply", spec, *M, "--check", "full", "--trace", file).status == 0
    calls = [json.loads(line) for line in file.read_text().splitlines()]
    assert [call["result"][0] for call in calls if call.get("method") == "verify"][:1] == [0]


def test_several_processes_have_a_file_each_in_a_folder(run_inline: InlineRunner, tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    assert run_inline("apply", HAND_OVER, *M, "--trace", folder, "--check", "none").status == 0
    assert sorted(file.name for file in folder.iterdir()) == ["decode.jsonl", "prefill.jsonl"]
    found = run_inline("trace", folder).out
    assert "cuMemImportFromShareableHandle" in found
    whole = run_inline("trace", folder, "--json").document
    parts = [run_inline("trace", file, "--json").document for file in folder.iterdir()]
    assert whole["calls"] == sum(part["calls"] for part in parts)
    alone = tmp_path / "alone.jsonl"
    run_inline("apply", QUICKSTART, *M, "--trace", alone, "--check", "none")
    heads = [json.loads(file.read_text().partition("\n")[0]) for file in (*folder.iterdir(), alone)]
    assert [head["layout"] for head in heads] == ["hand-over", "hand-over", "quickstart"]
    assert len({head["driver"] for head in heads}) == 1


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
    assert "decode.jsonl' exists, and is not a trace" in refused.err
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


def test_other_files_in_a_folder_of_traces_are_not_read(run_inline: InlineRunner, tmp_path: Path) -> None:
    assert run_inline("apply", QUICKSTART, *M, "--trace", tmp_path / "b.jsonl", "--check", "none").status == 0
    (tmp_path / "a.jsonl").write_text('{"mine": 1}\n')
    os.mkfifo(tmp_path / "c.jsonl")
    assert run_inline("trace", tmp_path).out.startswith("trace  quickstart")


HEAD = {"memtopo_trace_file": 1, "layout": "l", "process": "", "machine": "m", "simulated": True}
HEAD |= {"driver": "13.0", "pid": 1, "started": "2026-01-31T12:00:00"}
CALL = {"n": 1, "time": 0.1, "phase": "map", "step": "map a", "undo": False, "call": "cuMemMap", "method": "mem_map"}
CALL |= {"arguments": {"size": 1}, "error": "UNKNOWN", "reason": "none", "seconds": 0.1}
DAMAGED = [5, "1", [1], None, True, {}, -1, 1e400, float("nan"), [[[]]], {"a": [{}]}]


@pytest.mark.parametrize("line", ["5", "[1]", "null", '{"n": 1}', "[" * 100_000, '{"a":' * 100_000, "\x00"])
def test_a_damaged_line_is_refused(run_inline: InlineRunner, tmp_path: Path, line: str) -> None:
    file = tmp_path / "calls.jsonl"
    for text in (f"{json.dumps(HEAD)}\n{line}\n", f"{line}\n{json.dumps(CALL)}\n"):
        file.write_text(text)
        assert run_inline("trace", file).status == 2


def test_damaged_values_are_refused_or_shown(run_inline: InlineRunner, tmp_path: Path) -> None:
    file, nested = tmp_path / "calls.jsonl", json.loads("[" * 150 + "]" * 150)
    statuses = set()
    for index, key in [*((0, key) for key in HEAD), *((1, key) for key in CALL)]:
        for value in (*DAMAGED, {"a": nested}):
            lines = [HEAD, CALL]
            lines[index] = {**lines[index], key: value}
            file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            for flag in ((), ("--json",)):
                found = run_inline("trace", file, *flag).status
                assert found in (0, 2), (key, value)
                statuses.add(found)
    assert statuses == {0, 2}


def test_escape_sequences_of_a_trace_are_not_printed(run_inline: InlineRunner, tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    bad = "\x1b[31mred"
    names = ("process", "phase", "step", "call", "method", "error", "reason")
    for call in (CALL | dict.fromkeys(names, bad), {name: bad if name == "process" else CALL[name] for name in CALL}):
        file.write_text(f"{json.dumps(HEAD | {'layout': bad, 'machine': bad})}\n{json.dumps(call)}\n")
        found = run_inline("trace", file)
        assert found.status == 0
        assert "\x1b" not in found.out
        assert r"\x1b[31mred" in found.out


def test_a_failed_call_of_the_undo_of_a_step_is_shown_as_that(run_inline: InlineRunner, tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    for undo, step in ((False, "map a"), (True, "undo map a")):
        file.write_text(f"{json.dumps(HEAD)}\n{json.dumps(CALL | {'undo': undo})}\n")
        assert f"  1  {step}  cuMemMap(size=1) = UNKNOWN" in run_inline("trace", file).out


def test_a_trace_that_ends_within_a_line_is_read_without_it(run_inline: InlineRunner, tmp_path: Path) -> None:
    """Only a call that ends with its arguments did not return."""
    file, whole = tmp_path / "calls.jsonl", f"{json.dumps(HEAD)}\n{json.dumps(CALL)}\n"
    last = json.dumps({**CALL, "n": 2})
    begun = last.index(', "error"')
    for end in range(len(last)):
        file.write_text(whole + last[:end])
        found = run_inline("trace", file, "--json")
        assert found.status == 0
        assert found.document["calls"] == (2 if end == begun else 1), last[:end]
